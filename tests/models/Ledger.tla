------------------------------- MODULE Ledger -------------------------------
(***************************************************************************)
(* One ledger of BookKeeper: its writer, the bookies, recovery and         *)
(* auto-recovery. What bookies hold counts from the moment at which they   *)
(* answer. An ordinary add is refused by a fenced bookie, a recovery add   *)
(* is not. Entries are numbered from 0.                                    *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANT Bookies

VARIABLES
  quorum,    \* [write |-> Qw, ack |-> Qa]
  state,     \* of the metadata: "open", "recovery", "closed"
  last,      \* last entry of a closed ledger
  segments,  \* of the metadata: sequence of [first |-> entry, ensemble |-> sequence of bookies]
  added,     \* by bookie: entries of ordinary adds that it has confirmed
  copied,    \* by bookie: entries of recovery adds that it has confirmed
  fenced,    \* bookies that take no ordinary add any more
  acked,     \* last entry that the writer has confirmed to its application, -1 before
  ended      \* the writer has closed the ledger: it confirms nothing more

vars == <<quorum, state, last, segments, added, copied, fenced, acked, ended>>

SegmentOf(segs, e) ==
  segs[CHOOSE i \in 1..Len(segs) : segs[i].first <= e /\ (i = Len(segs) \/ segs[i + 1].first > e)]

WriteSet(segs, e) ==
  LET ensemble == SegmentOf(segs, e).ensemble
  IN {ensemble[((e + k) % Len(ensemble)) + 1] : k \in 0..(quorum.write - 1)}

Copies(segs, e) == Cardinality({b \in WriteSet(segs, e) : e \in added[b] \/ e \in copied[b]})

Created(write, ack, ensemble) ==
  /\ quorum = [write |-> write, ack |-> ack]
  /\ state = "open" /\ last = -1 /\ acked = -1 /\ fenced = {} /\ ended = FALSE
  /\ segments = <<[first |-> 0, ensemble |-> ensemble]>>
  /\ added = [b \in Bookies |-> {}] /\ copied = [b \in Bookies |-> {}]

-----------------------------------------------------------------------------
(* Bookies *)

Add(b, entries) ==
  /\ b \notin fenced
  /\ added' = [added EXCEPT ![b] = @ \cup entries]
  /\ UNCHANGED <<quorum, state, last, segments, copied, fenced, acked, ended>>

RecoveryAdd(b, entries) ==
  /\ state # "open" \/ Len(segments) > 1 \* auto-recovery copies earlier segments of open ledgers
  /\ copied' = [copied EXCEPT ![b] = @ \cup entries]
  /\ UNCHANGED <<quorum, state, last, segments, added, fenced, acked, ended>>

Fence(b) ==
  /\ fenced' = fenced \cup {b}
  /\ UNCHANGED <<quorum, state, last, segments, added, copied, acked, ended>>

-----------------------------------------------------------------------------
(* The writer. It counts its own adds alone, on the bookies that the metadata names. *)

Ack(e) ==
  /\ e = acked + 1 /\ ~ended
  /\ Cardinality({b \in WriteSet(segments, e) : e \in added[b]}) >= quorum.ack
  /\ acked' = e
  /\ UNCHANGED <<quorum, state, last, segments, added, copied, fenced, ended>>

Firsts(segs) == [i \in 1..Len(segs) |-> segs[i].first]

Extends(segs) ==
  /\ Len(segs) >= Len(segments)
  /\ SubSeq(Firsts(segs), 1, Len(segments)) = Firsts(segments)
  /\ \A i \in 1..(Len(segs) - 1) : segs[i].first < segs[i + 1].first

ChangeEnsemble(segs) ==
  /\ state = "open"
  /\ Extends(segs)
  /\ segs[Len(segs)].first = acked + 1
  /\ \A i \in 1..(Len(segments) - 1) : segs[i] = segments[i]
  /\ Len(segs) > Len(segments) => Len(segs) = Len(segments) + 1 /\ segs[Len(segments)] = segments[Len(segments)]
  /\ segments' = segs
  /\ UNCHANGED <<quorum, state, last, added, copied, fenced, acked, ended>>

(* Also of a ledger that somebody has begun to recover: the metadata takes the first end that is written. *)
CloseByWriter(end) ==
  /\ state # "closed"
  /\ end = acked
  /\ state' = "closed" /\ last' = end /\ ended' = TRUE
  /\ UNCHANGED <<quorum, segments, added, copied, fenced, acked>>

-----------------------------------------------------------------------------
(* Recovery *)

BeginRecovery ==
  /\ state \in {"open", "recovery"}
  /\ state' = "recovery"
  /\ UNCHANGED <<quorum, last, segments, added, copied, fenced, acked, ended>>

(* Entry e can not have reached an ack quorum and never will: so many of its bookies are fenced and do not have it. *)
NeverAcked(e) ==
  Cardinality({b \in WriteSet(segments, e) : b \in fenced /\ e \notin added[b]}) > quorum.write - quorum.ack

CloseByRecovery(end, segs) ==
  /\ state = "recovery"
  /\ Extends(segs)
  /\ NeverAcked(end + 1)
  /\ \A e \in 0..end : Copies(segs, e) >= quorum.ack
  /\ state' = "closed" /\ last' = end /\ segments' = segs
  /\ UNCHANGED <<quorum, added, copied, fenced, acked, ended>>

(* Auto-recovery puts another bookie into the place of one, once that holds the copies. *)
Repair(segs) ==
  LET end == IF state = "closed" THEN last ELSE acked
  IN /\ Firsts(segs) = Firsts(segments)
     /\ state # "closed" => segs[Len(segs)] = segments[Len(segments)]
     /\ \A e \in 0..end :
          SegmentOf(segs, e) # SegmentOf(segments, e) => Copies(segs, e) >= quorum.ack
     /\ segments' = segs
     /\ UNCHANGED <<quorum, state, last, added, copied, fenced, acked, ended>>

-----------------------------------------------------------------------------
(* What all this is for *)

ClosedBehindAcked == state = "closed" => acked <= last

Durable == \A e \in 0..acked : Copies(segments, e) >= quorum.ack

ClosedDurable == state = "closed" => \A e \in 0..last : Copies(segments, e) >= quorum.ack
=============================================================================
