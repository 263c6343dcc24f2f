-------------------- MODULE ReplicatedSubscriptionsModel --------------------
(* Every behaviour of three clusters and one snapshot: cluster 1 takes it and consumes, the others follow. *)
EXTENDS ReplicatedSubscriptions

CONSTANT MessagesMax

Init == Among(3)

(* As late as may be: an answer that names less lets others skip less. *)
Asked(r, round) == \E k \in Places(r) : log[r][k].kind = "answer" /\ log[r][k].from = r /\ log[r][k].round = round
PlacesNamed(r) == {log[1][k].at : k \in Answers(1, r, 1, 1)}
Wrote(kind) == \E k \in Places(1) : log[1][k].kind = kind

Next ==
  \/ \E r \in among : messages < MessagesMax /\ Publish(r)
  \/ \E x \in among, y \in among : x # y /\ Copy(x, y)
  \/ \E round \in 1..Rounds : Request(1, 1, round)
  \/ \E r \in Others(1), round \in 1..Rounds : ~Asked(r, round) /\ Answer(r, 1, 1, round, Len(log[r]))
  \/ ~Wrote("snapshot") /\ \E a \in PlacesNamed(2), b \in PlacesNamed(3) : Snapshot(1, 1, Len(log[1]), <<0, a, b>>)
  \/ \E k \in Places(1) : k \notin taken[1] /\ Ack(1, k)
  \/ Consumed(1, Len(log[1]))
  \/ ~Wrote("update") /\ \E k \in Places(1) : log[1][k].kind = "snapshot" /\ Update(1, log[1][k].ids)
  \/ \E r \in Others(1), k \in Places(1) : log[1][k].kind = "update" /\ Move(r, log[1][k].ids[r])

Spec == Init /\ [][Next]_vars
=============================================================================
