------------------------------- MODULE Bakery -------------------------------
(* Turns at one Iceberg table between the nodes of a mesh. Each action is one transaction of the product; docs/formal.md names its
   function. The switches at the end of the constants are TRUE in the product: a configuration that sets one to FALSE must fail. *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    N,              \* nodes; their numbers are their names
    WritersMax,     \* claims that a node has at once
    TicketMax,      \* this and what follows bound the model
    ClaimsMax,
    CrashesMax,
    CutsMax,
    AsksMax,
    Quorum,         \* how many must not hear a node before it is passed over, and how many a writer must hear
    Deferring,      \* a node with an earlier claim defers its answer
    HolderDefers,   \* so does a node that is at work, whatever the tickets say
    AtomicRelease,  \* deferring and releasing happen below one lock
    LamportClock,   \* a claim that arrives moves the clock
    Revoking        \* who is cut off while at work knows it before the others pass over him

VARIABLES
    clock, own, asked, holding, acks, deferred, channel, up, cut, claims, crashes, cuts, asks, deciding

vars == <<clock, own, asked, holding, acks, deferred, channel, up, cut, claims, crashes, cuts, asks, deciding>>

Nodes == 1..N
Nobody == <<0, 0, 0>>
Least(S) == CHOOSE t \in S : \A u \in S : t <= u
Larger(a, b) == IF a > b THEN a ELSE b
Before(t, n, u, m) == t < u \/ (t = u /\ n < m)

Hears(n, m) == up[n] /\ up[m] /\ {n, m} \notin cut
HearsEnough(n) == up[n] /\ Cardinality({n} \cup {m \in Nodes : Hears(n, m)}) >= Quorum
\* Whoever passes this at the end of its turn may commit: Claim.check.
MayCommit(n) == holding[n] # 0 /\ HearsEnough(n)

\* What of node n stands before claim t of node m, were these its claims.
Stands(n, mine, t, m) == \E u \in mine : \/ Deferring /\ Before(u, n, t, m)
                                         \/ HolderDefers /\ u = holding[n]

\* A claim is sent again under a higher number when its node was cut off; an answer says which sending it answers.
Claimed(t, k) == [kind |-> "claim", ticket |-> t, asked |-> k]
Released(t) == [kind |-> "release", ticket |-> t, asked |-> 0]
Ack(t, k) == [kind |-> "ack", ticket |-> t, asked |-> k]

\* Answers to the deferred claims of m in D, in the order of their tickets.
RECURSIVE Answers(_)
Answers(D) == IF D = {} THEN <<>>
              ELSE LET first == CHOOSE d \in D : \A e \in D : d[1] <= e[1] IN <<Ack(first[1], first[3])>> \o Answers(D \ {first})

\* What n says to everybody, and then its answers to the deferred claims in D.
Tell(n, said, D) ==
    [a \in Nodes |-> [b \in Nodes |->
        IF a = n /\ b # n
        THEN channel[a][b] \o said \o Answers({d \in D : d[2] = b})
        ELSE channel[a][b]]]

Init ==
    /\ clock = [n \in Nodes |-> 0]
    /\ own = [n \in Nodes |-> {}]
    /\ asked = [n \in Nodes |-> 0]
    /\ holding = [n \in Nodes |-> 0]
    /\ acks = [n \in Nodes |-> {}]
    /\ deferred = [n \in Nodes |-> {}]
    /\ channel = [a \in Nodes |-> [b \in Nodes |-> <<>>]]
    /\ up = [n \in Nodes |-> TRUE]
    /\ cut = {}
    /\ claims = 0
    /\ crashes = 0
    /\ cuts = 0
    /\ asks = 0
    /\ deciding = [n \in Nodes |-> Nobody]

Claim(n) ==
    LET t == clock[n] + 1 IN
    /\ up[n] /\ t <= TicketMax /\ claims < ClaimsMax /\ Cardinality(own[n]) < WritersMax
    /\ claims' = claims + 1
    /\ clock' = [clock EXCEPT ![n] = t]
    /\ own' = [own EXCEPT ![n] = @ \cup {t}]
    /\ channel' = Tell(n, <<Claimed(t, asked[n])>>, {})
    /\ UNCHANGED <<asked, holding, acks, deferred, up, cut, crashes, cuts, deciding, asks>>

\* Sent again, to learn more: consent to earlier sendings of the same number stays consent.
AskAgain(n) ==
    /\ up[n] /\ holding[n] = 0 /\ own[n] # {} /\ asks < AsksMax
    /\ asks' = asks + 1
    /\ channel' = Tell(n, <<Claimed(Least(own[n]), asked[n])>>, {})
    /\ UNCHANGED <<clock, own, asked, holding, acks, deferred, up, cut, claims, crashes, cuts, deciding>>

\* A claim of m arrives at n, which consents or defers.
ReceiveClaim(m, n) ==
    /\ Hears(m, n) /\ channel[m][n] # <<>> /\ Head(channel[m][n]).kind = "claim" /\ deciding[n] = Nobody
    /\ LET t == Head(channel[m][n]).ticket
           k == Head(channel[m][n]).asked
           older == {d \in deferred[n] : d[1] = t /\ d[2] = m}
           defers == Stands(n, own[n], t, m)
           taken == [channel EXCEPT ![m][n] = Tail(@)]
       IN /\ clock' = [clock EXCEPT ![n] = IF LamportClock THEN Larger(@, t) ELSE @]
          /\ channel' = IF defers THEN taken ELSE [taken EXCEPT ![n][m] = Append(@, Ack(t, k))]
          /\ IF AtomicRelease
             THEN /\ deferred' = [deferred EXCEPT ![n] = IF defers THEN (@ \ older) \cup {<<t, m, k>>} ELSE @ \ older]
                  /\ UNCHANGED deciding
             ELSE /\ deciding' = [deciding EXCEPT ![n] = IF defers THEN <<t, m, k>> ELSE Nobody]
                  /\ UNCHANGED deferred
    /\ UNCHANGED <<own, asked, holding, acks, up, cut, crashes, cuts, claims, asks>>

\* Only without the common lock: the decision was taken, and is written down later.
DeferLate(n) ==
    /\ up[n] /\ deciding[n] # Nobody
    /\ deferred' = [deferred EXCEPT ![n] = @ \cup {deciding[n]}]
    /\ deciding' = [deciding EXCEPT ![n] = Nobody]
    /\ UNCHANGED <<clock, own, asked, holding, acks, channel, up, cut, crashes, cuts, claims, asks>>

ReceiveRelease(m, n) ==
    /\ Hears(m, n) /\ channel[m][n] # <<>> /\ Head(channel[m][n]).kind = "release"
    /\ deferred' = [deferred EXCEPT ![n] = {d \in @ : d[1] # Head(channel[m][n]).ticket \/ d[2] # m}]
    /\ channel' = [channel EXCEPT ![m][n] = Tail(@)]
    /\ UNCHANGED <<clock, own, asked, holding, acks, up, cut, crashes, cuts, deciding, claims, asks>>

ReceiveAck(m, n) ==
    /\ Hears(m, n) /\ channel[m][n] # <<>> /\ Head(channel[m][n]).kind = "ack"
    /\ LET t == Head(channel[m][n]).ticket
           k == Head(channel[m][n]).asked
       IN acks' = [acks EXCEPT ![n] = IF t \in own[n] /\ k = asked[n] THEN @ \cup {<<t, m>>} ELSE @]
    /\ channel' = [channel EXCEPT ![m][n] = Tail(@)]
    /\ UNCHANGED <<clock, own, asked, holding, deferred, up, cut, crashes, cuts, deciding, claims, asks>>

\* A node that is up, hears too few, and has not acted on it.
Unaware(n) == up[n] /\ ~HearsEnough(n) /\ (holding[n] # 0 \/ acks[n] # {} \/ \E m \in Nodes : \E i \in 1..Len(channel[m][n]) :
                                           channel[m][n][i].kind = "ack" /\ channel[m][n][i].asked = asked[n] /\ channel[m][n][i].ticket \in own[n])
\* Silent for q for the whole window. Who hears too few acts on it after half of that time.
Silent(q, m) == /\ ~Hears(q, m)
                /\ Revoking => ~Unaware(m)
\* Passed over by n: so many say so, n among them.
PassedOver(n, m) == Silent(n, m) /\ Cardinality({q \in Nodes \ {m} : (q = n \/ Hears(n, q)) /\ Silent(q, m)}) >= Quorum

Enter(n) ==
    /\ up[n] /\ holding[n] = 0 /\ own[n] # {}
    /\ LET t == Least(own[n])
       IN /\ \A m \in Nodes \ {n} : <<t, m>> \in acks[n] \/ PassedOver(n, m)
          /\ holding' = [holding EXCEPT ![n] = t]
    /\ UNCHANGED <<clock, own, asked, acks, deferred, channel, up, cut, crashes, cuts, deciding, claims, asks>>

GiveBack(n, t) ==
    LET mine == own[n] \ {t}
        \* Below the lock: the claim is gone before deferred ones are looked at.
        due == {d \in deferred[n] : \A u \in mine : ~(Deferring /\ Before(u, n, d[1], d[2]))}
    IN /\ own' = [own EXCEPT ![n] = mine]
       /\ holding' = [holding EXCEPT ![n] = IF @ = t THEN 0 ELSE @]
       /\ acks' = [acks EXCEPT ![n] = {a \in @ : a[1] # t}]
       /\ deferred' = [deferred EXCEPT ![n] = @ \ due]
       /\ channel' = Tell(n, <<Released(t)>>, due)

\* Commit, rollback, and a writer whose session ended: the same.
Release(n) ==
    /\ up[n] /\ holding[n] # 0 /\ GiveBack(n, holding[n])
    /\ UNCHANGED <<clock, asked, up, cut, crashes, cuts, deciding, claims, asks>>

\* Who hears too few loses his turn; who waits asks anew, and answers to what was asked before count no more.
Revoke(n) ==
    /\ Unaware(n) /\ Revoking
    /\ IF holding[n] # 0
       THEN GiveBack(n, holding[n]) /\ UNCHANGED asked
       ELSE /\ asked' = [asked EXCEPT ![n] = @ + 1]
            /\ acks' = [acks EXCEPT ![n] = {}]
            /\ channel' = Tell(n, IF own[n] = {} THEN <<>> ELSE <<Claimed(Least(own[n]), asked[n] + 1)>>, {})
            /\ UNCHANGED <<own, holding, deferred>>
    /\ UNCHANGED <<clock, up, cut, crashes, cuts, deciding, claims, asks>>

\* A server dies, and all its sessions with it. What it wrote stays.
Crash(n) ==
    /\ up[n] /\ crashes < CrashesMax
    /\ crashes' = crashes + 1
    /\ up' = [up EXCEPT ![n] = FALSE]
    /\ holding' = [holding EXCEPT ![n] = 0]
    /\ UNCHANGED <<clock, own, asked, acks, deferred, channel, cut, cuts, deciding, claims, asks>>

\* It comes back, and a claim without a session is a dead writer's.
Restart(n) ==
    /\ ~up[n]
    /\ up' = [up EXCEPT ![n] = TRUE]
    /\ own' = [own EXCEPT ![n] = {}]
    /\ acks' = [acks EXCEPT ![n] = {}]
    /\ deferred' = [deferred EXCEPT ![n] = {}]
    /\ channel' = Tell(n, IF own[n] = {} THEN <<>> ELSE <<Released(Least(own[n]))>>, deferred[n])
    /\ UNCHANGED <<clock, asked, holding, cut, crashes, cuts, deciding, claims, asks>>

Cut(a, b) ==
    /\ a < b /\ {a, b} \notin cut /\ cuts < CutsMax
    /\ cut' = cut \cup {{a, b}}
    /\ cuts' = cuts + 1
    /\ UNCHANGED <<clock, own, asked, holding, acks, deferred, channel, up, crashes, deciding, claims, asks>>

Heal(a, b) ==
    /\ {a, b} \in cut
    /\ cut' = cut \ {{a, b}}
    /\ UNCHANGED <<clock, own, asked, holding, acks, deferred, channel, up, crashes, cuts, deciding, claims, asks>>

Next ==
    \/ \E n \in Nodes : Claim(n) \/ AskAgain(n) \/ Enter(n) \/ Release(n) \/ Revoke(n) \/ DeferLate(n) \/ Crash(n) \/ Restart(n)
    \/ \E m, n \in Nodes : m # n /\ (ReceiveClaim(m, n) \/ ReceiveRelease(m, n) \/ ReceiveAck(m, n) \/ Cut(m, n) \/ Heal(m, n))

Fairness ==
    /\ \A n \in Nodes : WF_vars(Enter(n)) /\ WF_vars(Release(n)) /\ WF_vars(DeferLate(n)) /\ WF_vars(Restart(n))
    /\ \A m, n \in Nodes : m # n => WF_vars(ReceiveClaim(m, n)) /\ WF_vars(ReceiveRelease(m, n)) /\ WF_vars(ReceiveAck(m, n)) /\ WF_vars(Heal(m, n))

Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ Fairness

-----------------------------------------------------------------------------
\* Two nodes never may commit at once.
MutualExclusion == \A a, b \in Nodes : a # b => ~(MayCommit(a) /\ MayCommit(b))

\* Whoever is at work is the first of all who wait. Where nodes were passed over, only of those that hear each other.
TicketOrder ==
    \A n, m \in Nodes : holding[n] # 0 /\ n # m => \A u \in own[m] : Before(holding[n], n, u, m)

\* On one node always.
TicketOrderOnANode == \A n \in Nodes : holding[n] # 0 => \A u \in own[n] : holding[n] <= u

\* Nobody waits for an answer that nobody owes him any more.
DeferredHasReason == \A n \in Nodes : up[n] => \A d \in deferred[n] : Stands(n, own[n], d[1], d[2])

\* Everybody gets his turn, or dies.
EverybodyGetsHisTurn == \A n \in Nodes : \A t \in 1..TicketMax : (t \in own[n]) ~> (t \notin own[n])
=============================================================================
