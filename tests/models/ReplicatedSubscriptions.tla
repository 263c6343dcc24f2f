---------------------- MODULE ReplicatedSubscriptions ----------------------
(***************************************************************************)
(* A subscription that follows its consumer from cluster to cluster        *)
(* (PIP-33). A topic is a log in each cluster; a link copies what its      *)
(* source's own clients and brokers wrote, in order, and may go back and   *)
(* copy it again. A cluster asks all others how far their logs are; what   *)
(* they answer is a snapshot, beside the place where the last answer lies  *)
(* here. With more than one other cluster it asks twice, and the answers   *)
(* of the first round count. Whoever has consumed everything up to that    *)
(* place lets the others go to their answers.                              *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS Clusters, RoundsOfMany \* how often it is asked when there is more than one other cluster

VARIABLES
  among,     \* the clusters of the topic
  log,       \* by cluster: sequence of entries
  passed,    \* by source and target: entries of the source's log that the link between them has passed
  messages,  \* how many were published
  taken,     \* by cluster: places of messages that its consumer has acknowledged
  acked,     \* messages that were acknowledged anywhere
  mark       \* by cluster: the last place that counts as consumed, 0 before the first

vars == <<among, log, passed, messages, taken, acked, mark>>

Among(count) ==
  /\ among = 1..count
  /\ log = [r \in Clusters |-> <<>>] /\ passed = [x \in Clusters |-> [y \in Clusters |-> 0]]
  /\ messages = 0 /\ taken = [r \in Clusters |-> {}] /\ acked = {} /\ mark = [r \in Clusters |-> 0]

(* `to`: the only cluster that it goes to, 0 for all. `at`: a place in the log of whom it comes from. *)
Entry(kind, from, to, id, round, at, ids) ==
  [kind |-> kind, from |-> from, to |-> to, id |-> id, round |-> round, at |-> at, ids |-> ids]

Places(r) == 1..Len(log[r])
Others(r) == among \ {r}
Rounds == IF Cardinality(among) > 2 THEN RoundsOfMany ELSE 1
MessagesUpTo(r, last) == {log[r][k].id : k \in {k \in 1..last : log[r][k].kind = "message"}}

Write(r, entry) == log' = [log EXCEPT ![r] = Append(@, entry)]

-----------------------------------------------------------------------------
(* Messages and links *)

Publish(r) ==
  /\ Write(r, Entry("message", r, 0, messages + 1, 0, 0, <<>>))
  /\ messages' = messages + 1
  /\ UNCHANGED <<among, passed, taken, acked, mark>>

ToCopy(x, y) ==
  {k \in (passed[x][y] + 1)..Len(log[x]) : log[x][k].from = x /\ log[x][k].to \in {0, y}}

Copy(x, y) ==
  /\ LET waiting == ToCopy(x, y)
         next == CHOOSE k \in waiting : \A j \in waiting : k <= j
     IN waiting # {} /\ Write(y, log[x][next]) /\ passed' = [passed EXCEPT ![x][y] = next]
  /\ UNCHANGED <<among, messages, taken, acked, mark>>

Back(x, y, place) ==
  /\ passed' = [passed EXCEPT ![x][y] = IF place < @ THEN place ELSE @]
  /\ UNCHANGED <<among, log, messages, taken, acked, mark>>

-----------------------------------------------------------------------------
(* Snapshots *)

(* Places of answers of q in r's log, in one round. *)
Answers(r, q, id, round) ==
  {k \in Places(r) : log[r][k].kind = "answer" /\ log[r][k].from = q /\ log[r][k].to = r
                     /\ log[r][k].id = id /\ log[r][k].round = round}

Requests(r, q, id, round) ==
  {k \in Places(r) : log[r][k].kind = "request" /\ log[r][k].from = q /\ log[r][k].id = id /\ log[r][k].round = round}

Request(r, id, round) ==
  /\ round = 1 \/ (round <= Rounds /\ \A q \in Others(r) : Answers(r, q, id, round - 1) # {})
  /\ Requests(r, r, id, round) = {}
  /\ Write(r, Entry("request", r, 0, id, round, 0, <<>>))
  /\ UNCHANGED <<among, passed, messages, taken, acked, mark>>

(* It is written behind the place that it names, which is not before the request. *)
Answer(r, q, id, round, at) ==
  /\ \E k \in Requests(r, q, id, round) : k <= at
  /\ at <= Len(log[r])
  /\ Write(r, Entry("answer", r, q, id, round, at, <<>>))
  /\ UNCHANGED <<among, passed, messages, taken, acked, mark>>

(* The answers of the first round that count came before the second was asked for. *)
Snapshot(r, id, at, ids) ==
  /\ at <= Len(log[r])
  /\ LET before == IF Rounds = 1 THEN {at} ELSE Requests(r, r, id, 2)
     IN \A q \in Others(r) : \E k \in Answers(r, q, id, 1), j \in before : k <= j /\ log[r][k].at = ids[q]
  /\ \A q \in Others(r) : \E k \in Answers(r, q, id, Rounds) : k <= at
  /\ Write(r, Entry("snapshot", r, r, id, 0, at, ids))
  /\ UNCHANGED <<among, passed, messages, taken, acked, mark>>

-----------------------------------------------------------------------------
(* The subscription *)

Ack(r, k) ==
  /\ k \in Places(r) /\ log[r][k].kind = "message"
  /\ taken' = [taken EXCEPT ![r] = @ \cup {k}]
  /\ acked' = acked \cup {log[r][k].id}
  /\ UNCHANGED <<among, log, passed, messages, mark>>

Consumed(r, upto) ==
  /\ mark[r] < upto /\ upto <= Len(log[r])
  /\ \A k \in (mark[r] + 1)..upto : log[r][k].kind = "message" => k \in taken[r]
  /\ mark' = [mark EXCEPT ![r] = upto]
  /\ UNCHANGED <<among, log, passed, messages, taken, acked>>

(* It is told to all of a snapshot that is passed. *)
Update(r, ids) ==
  /\ \E k \in Places(r) : log[r][k].kind = "snapshot" /\ log[r][k].ids = ids /\ log[r][k].at <= mark[r]
  /\ Write(r, Entry("update", r, 0, 0, 0, 0, ids))
  /\ UNCHANGED <<among, passed, messages, taken, acked, mark>>

Move(r, upto) ==
  /\ mark[r] < upto
  /\ \E k \in Places(r) : log[r][k].kind = "update" /\ log[r][k].from # r /\ log[r][k].ids[r] = upto
  /\ mark' = [mark EXCEPT ![r] = upto]
  /\ UNCHANGED <<among, log, passed, messages, taken, acked>>

-----------------------------------------------------------------------------
(* What all this is for: a consumer that goes on in another cluster finds everything that nobody has acknowledged. *)

NothingSkipped == \A r \in among : MessagesUpTo(r, mark[r]) \subseteq acked
=============================================================================
