---------------------------- MODULE BundlesTrace ----------------------------
(***************************************************************************)
(* Recorded runs of brokers, each event of which has to be a step of       *)
(* Bundles. The end of a lease is not an event: it is taken to be just     *)
(* before the end of the session, the latest moment at which it may be.    *)
(***************************************************************************)
EXTENDS Bundles, Sequences, Traces, TLC

VARIABLES run, at

Init == run \in 1..Len(Recorded) /\ at = 1 /\ NothingOwned

SessionGone(b) ==
  LET held == {k \in AllBundles : owner[k] = b}
  IN /\ owner' = [k \in AllBundles |-> IF k \in held THEN Nobody ELSE owner[k]]
     /\ leaving' = leaving \ held
     /\ believed' = [believed EXCEPT ![b] = {}]
     /\ UNCHANGED doubtful

Step(event) ==
  CASE event[1] = "acquire" -> Acquire(event[2], event[3])
    [] event[1] = "leave" -> Leave(event[2], event[3])
    [] event[1] = "stay" -> Stay(event[2], event[3])
    [] event[1] = "release" -> Release(event[2], event[3])
    [] event[1] = "session ends" -> SessionGone(event[2])
    [] event[1] = "deliver" -> Deliver(event[2], event[3])

Next ==
  /\ CASE at <= Len(Recorded[run]) -> Step(Recorded[run][at]) /\ OneServes' /\ at' = at + 1
       [] at = Len(Recorded[run]) + 1 -> PrintT(<<"accepted", run>>) /\ at' = at + 1 /\ UNCHANGED vars
       [] OTHER -> UNCHANGED <<vars, at>>
  /\ UNCHANGED run

Spec == Init /\ [][Next]_<<vars, run, at>>
=============================================================================
