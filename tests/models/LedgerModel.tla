----------------------------- MODULE LedgerModel -----------------------------
(* Every behaviour of a ledger of at most Entries entries on the bookies 1, 2 and 3. *)
EXTENDS Ledger

CONSTANTS Entries, Write, AckCount, First

Numbers == 0..(Entries - 1)

Init == Created(Write, AckCount, First)

Ensembles == {e \in [1..Len(First) -> Bookies] : \A i, j \in 1..Len(First) : i # j => e[i] # e[j]}

Next ==
  \/ \E b \in Bookies, e \in Numbers : Add(b, {e})
  \/ \E b \in Bookies, e \in Numbers :
       state = "recovery" /\ (\E other \in Bookies : e \in added[other]) /\ RecoveryAdd(b, {e})
  \/ \E b \in Bookies : Fence(b)
  \/ \E e \in Numbers : Ack(e)
  \/ \E e \in Ensembles : ChangeEnsemble(Append(segments, [first |-> acked + 1, ensemble |-> e]))
  \/ CloseByWriter(acked)
  \/ BeginRecovery
  \/ \E end \in -1..(Entries - 2) : CloseByRecovery(end, segments)

Spec == Init /\ [][Next]_vars

Pair == <<1, 2>>
Triple == <<1, 2, 3>>
=============================================================================
