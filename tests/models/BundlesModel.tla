---------------------------- MODULE BundlesModel ----------------------------
(* Every behaviour of few brokers and bundles. *)
EXTENDS Bundles

Init == NothingOwned

Next ==
  \/ \E k \in AllBundles, b \in Brokers :
       \/ b \notin doubtful /\ believed[b] \subseteq {j \in AllBundles : owner[j] = b} /\ Acquire(k, b)
       \/ Leave(k, b)
       \/ Stay(k, b)
       \/ Release(k, b)
       \/ Deliver(k, b)
  \/ \E b \in Brokers : LeaseEnds(b) \/ LeaseProven(b) \/ SessionEnds(b) \/ Forget(b)

Spec == Init /\ [][Next]_vars
=============================================================================
