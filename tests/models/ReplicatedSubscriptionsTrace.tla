-------------------- MODULE ReplicatedSubscriptionsTrace --------------------
(* Recorded runs of clusters, each event of which has to be a step of ReplicatedSubscriptions. *)
EXTENDS ReplicatedSubscriptions, Traces, TLC

VARIABLES run, at \* which of the recorded runs, and its next event

Init == run \in 1..Len(Recorded) /\ at = 2 /\ Among(Recorded[run][1][2])

Step(event) ==
  CASE event[1] = "publish" -> Publish(event[2])
    [] event[1] = "copy" -> Copy(event[2], event[3])
    [] event[1] = "back" -> Back(event[2], event[3], event[4])
    [] event[1] = "request" -> Request(event[2], event[3], event[4])
    [] event[1] = "answer" -> Answer(event[2], event[3], event[4], event[5], event[6])
    [] event[1] = "snapshot" -> Snapshot(event[2], event[3], event[4], event[5])
    [] event[1] = "ack" -> Ack(event[2], event[3])
    [] event[1] = "consumed" -> Consumed(event[2], event[3])
    [] event[1] = "update" -> Update(event[2], event[3])
    [] event[1] = "move" -> Move(event[2], event[3])

(* Only these events can make it false. *)
Kept(event) == event[1] \in {"consumed", "move"} => MessagesUpTo(event[2], event[3]) \subseteq acked

Next ==
  /\ CASE at <= Len(Recorded[run]) -> Kept(Recorded[run][at]) /\ Step(Recorded[run][at]) /\ at' = at + 1
       [] at = Len(Recorded[run]) + 1 -> PrintT(<<"accepted", run>>) /\ at' = at + 1 /\ UNCHANGED vars
       [] OTHER -> UNCHANGED <<vars, at>>
  /\ UNCHANGED run

Spec == Init /\ [][Next]_<<vars, run, at>>
=============================================================================
