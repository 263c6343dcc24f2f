----------------------------- MODULE LedgerTrace -----------------------------
(* Recorded ledgers, each event of which has to be a step of Ledger: one that is none is a deadlock. *)
EXTENDS Ledger, Traces, TLC

VARIABLES ledger, at \* which of the recorded ledgers, and its next event

Init ==
  /\ ledger \in 1..Len(Recorded) /\ at = 2
  /\ LET first == Recorded[ledger][1] IN Created(first[2], first[3], first[4])

Segments(event) == [i \in 1..Len(event[4]) |-> [first |-> event[4][i], ensemble |-> event[5][i]]]

(* event[6]: the process that made the ledger wrote this. *)
Metadata(event) ==
  \/ event[2] = "open" /\ event[6] /\ ChangeEnsemble(Segments(event))
  \/ event[2] = "open" /\ ~event[6] /\ Repair(Segments(event))
  \/ event[2] = "recovery" /\ Segments(event) = segments /\ BeginRecovery
  \/ event[2] = "recovery" /\ state = "recovery" /\ Repair(Segments(event))
  \/ event[2] = "closed" /\ event[6] /\ Segments(event) = segments /\ CloseByWriter(event[3])
  \/ event[2] = "closed" /\ ~event[6] /\ CloseByRecovery(event[3], Segments(event))
  \/ event[2] = "closed" /\ ~event[6] /\ state = "closed" /\ event[3] = last /\ Repair(Segments(event))

Step(event) ==
  CASE event[1] = "add" -> Add(event[2], {event[i] : i \in 3..Len(event)})
    [] event[1] = "recovery add" -> RecoveryAdd(event[2], {event[i] : i \in 3..Len(event)})
    [] event[1] = "fence" -> Fence(event[2])
    [] event[1] = "ack" -> Ack(event[2])
    [] event[1] = "metadata" -> Metadata(event)

Next ==
  /\ CASE at <= Len(Recorded[ledger]) -> Step(Recorded[ledger][at]) /\ ClosedBehindAcked' /\ at' = at + 1
       [] at = Len(Recorded[ledger]) + 1 -> PrintT(<<"accepted", ledger>>) /\ at' = at + 1 /\ UNCHANGED vars
       [] OTHER -> UNCHANGED <<vars, at>>
  /\ UNCHANGED ledger

Spec == Init /\ [][Next]_<<vars, ledger, at>>
=============================================================================
