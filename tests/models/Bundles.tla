------------------------------- MODULE Bundles -------------------------------
(***************************************************************************)
(* Who serves a bundle of topics. A bundle's owner is an ephemeral node of *)
(* the owner's metadata session. A broker believes what it knows; it       *)
(* serves what it believes to own while its lease lasts, which ends before *)
(* the service can end its session. A broker may stand still at any moment *)
(* and go on with what it believed.                                        *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS Brokers, AllBundles, Nobody

VARIABLES
  owner,     \* by bundle: the broker whose session holds the node, or Nobody
  leaving,   \* bundles whose owner gives them up: nobody is to load a topic of theirs
  believed,  \* by broker: the bundles that it takes for its own
  doubtful   \* brokers whose lease has ended

vars == <<owner, leaving, believed, doubtful>>

NothingOwned ==
  /\ owner = [k \in AllBundles |-> Nobody] /\ leaving = {}
  /\ believed = [b \in Brokers |-> {}] /\ doubtful = {}

Acquire(k, b) ==
  /\ owner[k] = Nobody
  /\ owner' = [owner EXCEPT ![k] = b] /\ leaving' = leaving \ {k}
  /\ believed' = [believed EXCEPT ![b] = @ \cup {k}]
  /\ UNCHANGED doubtful

Leave(k, b) ==
  /\ owner[k] = b
  /\ leaving' = leaving \cup {k}
  /\ UNCHANGED <<owner, believed, doubtful>>

(* It does not give the bundle up after all, or writes its node once more. *)
Stay(k, b) ==
  /\ owner[k] = b
  /\ leaving' = leaving \ {k}
  /\ UNCHANGED <<owner, believed, doubtful>>

Release(k, b) ==
  /\ owner[k] = b
  /\ owner' = [owner EXCEPT ![k] = Nobody] /\ leaving' = leaving \ {k}
  /\ believed' = [believed EXCEPT ![b] = @ \ {k}]
  /\ UNCHANGED doubtful

LeaseEnds(b) ==
  /\ doubtful' = doubtful \cup {b}
  /\ UNCHANGED <<owner, leaving, believed>>

(* The service is heard of again, and the session lives. *)
LeaseProven(b) ==
  /\ \A k \in believed[b] : owner[k] = b
  /\ doubtful' = doubtful \ {b}
  /\ UNCHANGED <<owner, leaving, believed>>

(* The service gives up a session that it has not heard of: its lease has ended long before. *)
SessionEnds(b) ==
  /\ b \in doubtful
  /\ LET held == {k \in AllBundles : owner[k] = b}
     IN /\ owner' = [k \in AllBundles |-> IF k \in held THEN Nobody ELSE owner[k]]
        /\ leaving' = leaving \ held
  /\ UNCHANGED <<believed, doubtful>>

(* The broker learns that its session ended, or is started again. *)
Forget(b) ==
  /\ \A k \in AllBundles : owner[k] # b
  /\ believed' = [believed EXCEPT ![b] = {}] /\ doubtful' = doubtful \ {b}
  /\ UNCHANGED <<owner, leaving>>

Serves(k, b) == k \in believed[b] /\ b \notin doubtful

(* A message of a topic in the bundle is sent to a consumer. *)
Deliver(k, b) == Serves(k, b) /\ UNCHANGED vars

OneServes == \A k \in AllBundles : Cardinality({b \in Brokers : Serves(k, b)}) <= 1
OwnerServes == \A k \in AllBundles, b \in Brokers : Serves(k, b) => owner[k] = b
=============================================================================
