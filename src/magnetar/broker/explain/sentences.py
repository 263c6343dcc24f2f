"""The words for each reason: what is the case, and what a person can do about it. Pure; the only place with such sentences.

Texts are templates over the facts: `{consumer}`; `{waiting:#message}` counts ("1 message", "3 messages"), `{waiting:#message|waits|wait}`
with its verb; `{keys:list}` joins. A fact that
is empty leaves its part in square brackets out: `[ of the keys {keys:list}]`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from string import Formatter
from typing import Any, Final, NamedTuple

from magnetar.broker.reasons import Code, Reason


class Meaning(NamedTuple):
    """`facts`: what else the answer has of facts that the texts do not name."""

    text: str
    change: str
    facts: tuple[str, ...] = ()


_OF_REFUSED = ("address", "error", "times", "subscription")

MEANINGS: Final[Mapping[Code, Meaning]] = {
    Code.NO_CONSUMERS: Meaning(
        "Nobody is connected to the subscription, and {backlog:#message|waits|wait}.",
        "Start a consumer of this subscription, or delete the subscription if nobody needs it any more.",
    ),
    Code.NOT_READING: Meaning(
        "The subscription reads nothing at the moment: its position is being reset, or its index of delayed messages is being loaded.",
        "Wait: it goes on by itself when that is done.",
    ),
    Code.READ_FAILED: Meaning(
        "The broker cannot read the next messages from storage and tries again: {error}.",
        "Look whether all bookies are there: `magnetar bookies list`, `magnetar ledger verify`.",
        ("failures",),
    ),
    Code.UNACKED_LIMIT_SUBSCRIPTION: Meaning(
        "The consumers together hold {unacked:#message} without an acknowledgement, and the limit of the subscription is {limit}[; most are"
        " held by {holders:list}].",
        "Acknowledge until {resumes_at} are left, restart consumers that hung, or raise maxUnackedMessagesPerSubscription.",
    ),
    Code.CONSUMER_FROZEN: Meaning(
        "Consumer {consumer} takes nothing any more, and {waiting:#message|waits|wait} for it and nobody else[, of the keys {keys:list}];"
        " the keys of other consumers go on.",
        "Look why its application hangs, or restart it: when it leaves, others get its keys.",
        ("address", "unacked", "slots", "cause", "more"),
    ),
    Code.UNACKED_LIMIT_CONSUMER: Meaning(
        "Consumer {consumer} holds {unacked:#message} without an acknowledgement, and the limit of a consumer is {limit}.",
        "Acknowledge until {resumes_at} are left, restart the consumer if it hung, or raise maxUnackedMessagesPerConsumer.",
        ("address",),
    ),
    Code.NO_PERMITS: Meaning(
        "Consumer {consumer} asks for nothing: the queue of its client is full, and its application receives nothing.",
        "Look why the application does not call receive, or start more consumers.",
        ("address", "permits"),
    ),
    Code.SOCKET_FULL: Meaning(
        "Consumer {consumer} does not read its connection: what was sent to it fills the socket.",
        "Look whether its process or its network hangs; it goes on when the connection drains.",
        ("address",),
    ),
    Code.SLOT_DRAINING: Meaning(
        "{slots:#hash slot} moved from consumer {holder} to {owner}, and {waiting:#message|waits|wait}[, of the keys {keys:list},]"
        " until {holder} has acknowledged the {held:#entry} of these slots that it holds.",
        "Let {holder} acknowledge, or restart it: then {owner} goes on at once.",
        ("slot_numbers",),
    ),
    Code.RANGE_UNCOVERED: Meaning(
        "No consumer covers the hash slots {ranges:list}, and {waiting:#message|waits|wait} there[, of the keys {keys:list}].",
        "Start a sticky Key_Shared consumer for these slots, or use the mode AUTO_SPLIT.",
        ("more",),
    ),
    Code.FAILOVER_SWITCHING: Meaning(
        "Consumer {consumer} takes over after {delay_ms} ms, in which the former one may still acknowledge.",
        "Wait, or lower activeConsumerFailoverDelayTimeMillis.",
        ("address",),
    ),
    Code.DISPATCH_RATE: Meaning(
        "The dispatch rate of {messages:#message} and {size_bytes:#byte} (0: no limit) in {period_s:#second} is used up; more goes out in"
        " {delay_s} s.",
        "Wait, or raise the dispatch rate of the topic or the subscription: `magnetar topicPolicies set-dispatch-rate`.",
    ),
    Code.TRANSACTION_OPEN: Meaning(
        "Transaction {transaction} is open since the message {message}, and nothing behind that may be read: {waiting:#entry}.",
        "Commit or abort it; its time-out ends it as well. `magnetar transactions` shows it.",
    ),
    Code.DELAYED: Meaning(
        "{messages:#message|waits|wait} for their delivery time, the next one until {until}.",
        "Wait; switching delayed delivery off in the policies delivers them at once.",
    ),
    Code.NOT_ACKNOWLEDGED: Meaning(
        "Everything was delivered, and {unacked:#message|waits|wait} for an acknowledgement[, held by {holders:list}].",
        "Let the consumers acknowledge, or restart those that hung: what they hold goes to others.",
    ),
    Code.CAUGHT_UP: Meaning(
        "Everything is read and acknowledged, up to {message}.",
        "Nothing needs to be done: the next message is delivered when it is published.",
    ),
    Code.ACKNOWLEDGED_IN_TRANSACTION: Meaning(
        "{entries:#entry|is|are} acknowledged within the open {transactions:list}, and consumed when that commits.",
        "Commit or abort the transaction.",
    ),
    Code.KEY_SKEWED: Meaning(
        "{percent} % of the messages that wait are of hash slot {slot}[, which is that of the key {keys:list}]: one consumer gets"
        " them, however many there are.",
        "Spread the key over several, or use a Shared subscription where order does not matter.",
        ("waiting", "consumer", "address"),
    ),
    Code.RETRIED_OFTEN: Meaning(
        "The next message, {message}, went through the retry topic {times} times; it came from {origin}.",
        "Look why the application fails on it; a dead letter policy with a limit ends the loop.",
    ),
    Code.REDELIVERED_OFTEN: Meaning(
        "Message {message}[ with the key {keys:list}] was given back {times} times; {messages:#message|was|were} given"
        " back more than twice.",
        "Look why the application fails on it, acknowledge it, or give the consumer a dead letter policy.",
    ),
    Code.EXPIRED: Meaning(
        "{entries:#entry} expired without an acknowledgement, the last ones at {at} by {rule}.",
        "Raise the message TTL or the backlog quota, or consume faster; what expired can be read again by a reset of the subscription"
        " while retention keeps it.",
        ("upto",),
    ),
    Code.ROUND_MISSING: Meaning(
        "Other clusters have not heard of everything that subscription {subscription} has acknowledged: {problem}.",
        "Wait for the next snapshot, and bring back a cluster that is missing: what was told before still counts.",
        ("would_repeat", "missing"),
    ),
    Code.SNAPSHOT_MISSING: Meaning(
        "The subscription's place does not follow to other clusters: {problem}.",
        "Bring the missing cluster back, or go on without it: `magnetar topics replicated-subscription exclude`.",
        ("would_repeat", "missing"),
    ),
    Code.DROPS_WITHOUT_PERMITS: Meaning(
        "The topic is not persistent: a message for which no consumer has room is dropped, {dropped:#message} so far.",
        "Use a persistent topic, or a larger receiver queue.",
    ),
    Code.TERMINATED: Meaning(
        "The topic is terminated behind the message {message}: it takes no messages any more, for good.",
        "Publish to another topic. What is stored can still be consumed.",
    ),
    Code.FENCED: Meaning(
        "Another broker has taken over the ledgers of the topic, and this one may not write any more.",
        "Wait: clients look the topic up again and find its new broker.",
    ),
    Code.QUOTA_EXCEEDED: Meaning(
        "The backlog quota is exceeded, so that producers are refused ({policy}): {subscription} has {backlog_bytes:#byte} of backlog, and"
        " the limit is {limit_bytes:#byte} or {limit_time_s:#second} (0: no limit).",
        "Consume with {subscription} or skip its backlog, delete it if nobody needs it, or raise the quota: `magnetar topicPolicies"
        " set-backlog-quota`.",
    ),
    Code.STORAGE_REFUSES: Meaning(
        "Nothing can be stored: {problem}.",
        "Bring bookies or disk space back: `magnetar bookies list`.",
    ),
    Code.SCHEMA_INCOMPATIBLE: Meaning(
        "The {who} {name} was refused[ by {subscription}] because its schema does not fit the topic's: {problem}.",
        "Give the client a schema that fits, or change the compatibility strategy: `magnetar schemas get`.",
        _OF_REFUSED,
    ),
    Code.NOT_PERMITTED: Meaning(
        "The {who} {name} was refused[ by {subscription}] because its role may not do that: {problem}.",
        "Grant the role the right, `magnetar namespaces grant-permission`, or give the client another token.",
        _OF_REFUSED,
    ),
    Code.SUBSCRIPTION_BUSY: Meaning(
        "The {who} {name} was refused[ by {subscription}] because others have the subscription: {problem}.",
        "Close the other consumers, or use a type that shares the subscription.",
        _OF_REFUSED,
    ),
    Code.EXCLUSIVE_ACCESS: Meaning(
        "The {who} {name} was refused because another producer has the topic or its name: {problem}.",
        "Close the other producer, choose another name, or another access mode.",
        _OF_REFUSED,
    ),
    Code.NOT_OWNED: Meaning(
        "The {who} {name} came to a broker that does not serve the topic: {problem}.",
        "Wait: clients look the topic up and find its broker. If it goes on, look at `magnetar topics lookup`.",
        _OF_REFUSED,
    ),
    Code.CLIENT_REFUSED: Meaning(
        "The {who} {name} was refused[ by {subscription}]: {problem}.",
        "Correct what the error says and let the client try again.",
        _OF_REFUSED,
    ),
    Code.WAITS_FOR_EXCLUSIVE: Meaning(
        "Producer {producer} waits for exclusive access, which {holder} has.",
        "Close {holder}: then it is the next one's turn.",
    ),
    Code.PUBLISH_RATE: Meaning(
        "The publish rate of {messages:#message} and {size_bytes:#byte} (0: no limit) in {period_s:#second} is used up, and"
        " {producers:#producer|is|are} held back for {delay_s} s.",
        "Wait, or raise the rate: `magnetar topicPolicies set-publish-rate`.",
    ),
    Code.RECEIPTS_OUTSTANDING: Meaning(
        "{entries:#entry|waits|wait} of producer {producer} for storage or its turn.",
        "If it goes on, look whether all bookies are there: `magnetar bookies list`.",
    ),
    Code.EXCLUSIVE_PRODUCER: Meaning(
        "Producer {holder} has exclusive access to the topic, and all others are refused[; {waiting:list} wait for it].",
        "Close it, or publish through it.",
        ("address",),
    ),
    Code.NOT_CONNECTED: Meaning(
        "Producer {producer} is not connected to the topic.",
        "Start it; if it runs, look at its log and at the other reasons here.",
    ),
    Code.SUBSCRIPTION_STANDS_STILL: Meaning(
        "Subscription {subscription} stands still with {backlog:#message} to be consumed: {problem}.",
        "See `magnetar explain subscription {subscription}`.",
        ("cause",),
    ),
    Code.REPLICATOR_DISCONNECTED: Meaning(
        "The replicator to cluster {cluster} is not connected, and {backlog:#message|waits|wait} for it: {problem}.",
        "Look whether that cluster runs and what its address is: `magnetar clusters get {cluster}`.",
    ),
    Code.TOPIC_NOT_LOADED: Meaning(
        "No broker has the topic loaded: it was unloaded, nobody used it for some time, or no client has come since its broker started.",
        "Nothing needs to be done: the first client that comes loads it. If clients run, look at their logs.",
    ),
    Code.MESSAGE_UNREADABLE: Meaning(
        "Message {message} is stored and cannot be read: {problem}.",
        "Look whether its bookies are there: `magnetar bookies list`, `magnetar ledger verify`.",
    ),
    Code.MESSAGE_DELETED: Meaning(
        "Message {message} was deleted with its ledger: every subscription had consumed it, and the retention of {retention_minutes}"
        " minutes or {retention_mb} MB (-1: for ever) was over. The topic begins at {first} now.",
        "It cannot come back. A longer retention keeps consumed messages: `magnetar topicPolicies set-retention`.",
    ),
    Code.MESSAGE_NEVER_WRITTEN: Meaning(
        "There is no message {message} in the topic; its last one is {last}.",
        "Check the id, and that it is of this topic and partition.",
    ),
    Code.MESSAGE_IS_MARKER: Meaning(
        "The entry {message} is a marker of the server (a transaction's end, or a snapshot of replication), which no consumer is given.",
        "Nothing needs to be done.",
    ),
    Code.MESSAGE_ABORTED: Meaning(
        "Message {message} was published in transaction {transaction}, which was aborted: no consumer is given it.",
        "Publish it again if it is needed.",
    ),
    Code.MESSAGE_IN_TRANSACTION: Meaning(
        "Message {message} belongs to transaction {transaction}, which is open: nobody may read it before its end.",
        "Commit or abort the transaction; its time-out ends it as well.",
    ),
    Code.MESSAGE_WAITS: Meaning(
        "Subscription {subscription} has not delivered message {message}, with {ahead:#entry} before it. {problem}.",
        "See `magnetar explain subscription {subscription}`.",
        ("cause",),
    ),
    Code.MESSAGE_DELAYED: Meaning(
        "Subscription {subscription} holds message {message} back until {until}, as its producer wanted.",
        "Wait; switching delayed delivery off in the policies delivers it at once.",
    ),
    Code.MESSAGE_EXPIRED: Meaning(
        "Message {message} expired in subscription {subscription} at {at} by {rule}, without an acknowledgement.",
        "Reset the subscription to it while retention keeps it; raise the message TTL or the backlog quota, or consume faster.",
    ),
    Code.MESSAGE_DELIVERED: Meaning(
        "Subscription {subscription} delivered message {message} to consumer {consumer}, which has not acknowledged it[; it was given back"
        " {redeliveries} times before].",
        "Let {consumer} acknowledge, or restart it: then another consumer gets the message.",
        ("address", "unacked"),
    ),
    Code.MESSAGE_ACKED_IN_TRANSACTION: Meaning(
        "Message {message} is acknowledged in subscription {subscription} within the open {transactions:list}.",
        "Commit or abort the transaction.",
    ),
    Code.MESSAGE_UNREAD: Meaning(
        "Subscription {subscription} has not come to message {message} yet: {ahead:#entry|is|are} before it, and delivery goes on.",
        "Wait, or start more consumers.",
    ),
    Code.MESSAGE_ACKNOWLEDGED: Meaning(
        "Message {message} is acknowledged in subscription {subscription}, where everything is up to {mark_delete}.",
        "Nothing needs to be done. To consume it again, reset the subscription: `magnetar topics reset-cursor`.",
    ),
    Code.NO_SUBSCRIPTION: Meaning(
        "Message {message} is stored, and the topic has no subscription.",
        "Subscribe, from the earliest message on to get this one.",
    ),
    Code.KEY_OWNED: Meaning(
        "Consumer {consumer} of subscription {subscription} has the key's hash slot {slot} by {by} and holds {held:#entry} of the slot.",
        "Nothing needs to be done.",
        ("address",),
    ),
    Code.COPIES_MISSING: Meaning(
        "Ledger {ledger}, from entry {first_entry} on, has copies on {missing:list}, which is not there: of some entries"
        " {copies_left:#copy|is|are} left of {write_quorum}, and {ack_quorum} are needed for a receipt.",
        "Bring the bookie back, or let auto-recovery copy what it held: `magnetar bookies recover`.",
    ),
    Code.UNDERREPLICATED: Meaning(
        "The auditor has marked ledger {ledger}: the copies of {missing:list} are missing, and workers will restore them.",
        "Wait; see that auto-recovery runs and that enough bookies are writable.",
    ),
    Code.LEDGER_OPEN: Meaning(
        "Ledger {ledger} is not closed (state {state}): its writer has it, or a reader is recovering it.",
        "Nothing needs to be done: it is closed when it is full, or when its topic is opened again.",
    ),
    Code.LEDGER_CURRENT: Meaning(
        "Ledger {ledger} is the one that {topic} writes to now.",
        "Nothing needs to be done: it is closed when it is full.",
    ),
    Code.KEPT_BY_SUBSCRIPTION: Meaning(
        "Ledger {ledger} of {topic} is kept for what is not consumed: {subscriptions:list}.",
        "Consume, skip the backlog, or delete a subscription that nobody needs.",
    ),
    Code.KEPT_BY_RETENTION: Meaning(
        "Ledger {ledger} of {topic} is consumed and kept by the retention of {retention_minutes} minutes or {retention_mb} MB (-1: for"
        " ever).",
        "Wait, or shorten the retention: `magnetar topicPolicies set-retention`.",
    ),
    Code.KEPT_FOR_CURSOR: Meaning(
        "Ledger {ledger} holds the positions of subscription {subscription}.",
        "Nothing needs to be done: it goes when the positions have moved to the next ledger, or with the subscription.",
    ),
    Code.KEPT_BY_NOBODY: Meaning(
        "Ledger {ledger} belongs to no topic; its component is {component}.",
        "Whoever made it deletes it: schemas, indexes of delayed messages, or another program.",
    ),
    Code.LEDGER_DELETABLE: Meaning(
        "Ledger {ledger} of {topic} is consumed by everybody, and its retention is over: it goes at the next check.",
        "Wait, or run `magnetar topics trim-topic`.",
    ),
    Code.LEDGER_DROPPED: Meaning(
        "Ledger {ledger} is no longer in the list of {topic}: its deletion has begun.",
        "Wait; what a crash left behind is deleted by `magnetar ledger` commands only.",
    ),
    Code.BUNDLE_UNOWNED: Meaning(
        "No broker has bundle {bundle}; the next client that looks one of its topics up brings it to {broker}: {problem}.",
        "Nothing needs to be done while a broker is named.",
    ),
    Code.BUNDLE_LEAVING: Meaning(
        "Bundle {bundle} is being handed over from {broker} to {successor}.",
        "Wait: it takes seconds.",
    ),
    Code.BUNDLE_WOULD_MOVE: Meaning(
        "Bundle {bundle} would move to {broker} at the leader's next round: {problem}.",
        "Wait, or move it yourself: `magnetar namespaces unload --destination-broker`.",
    ),
    Code.BUNDLE_WOULD_SPLIT: Meaning(
        "Bundle {bundle} would be split at the leader's next round: {problem}.",
        "Wait, or split it yourself: `magnetar namespaces split-bundle`.",
    ),
    Code.BUNDLE_HELD: Meaning(
        "Bundle {bundle} stays although it might move: {problem}.",
        "See `magnetar loadbalance plan`.",
    ),
    Code.BUNDLE_SERVED: Meaning(
        "Bundle {bundle} is on {broker}, which has {bundles:#bundle} and a usage of {usage} %[; {others:list} may serve it too].",
        "It moves when its broker dies, drains or is overloaded, or by `magnetar namespaces unload`.",
        ("isolated",),
    ),
    Code.NOT_REPLICATED: Meaning(
        "Subscription {subscription} is not replicated: its place does not follow it to other clusters.",
        "Subscribe with replicated state, or switch it on: `magnetar topics set-replicated-subscription-status`.",
    ),
    Code.CURSOR_FOLLOWS: Meaning(
        "The place of subscription {subscription} in other clusters[, {clusters:list},] is that of the last snapshot that it passed, at"
        " {at}; {would_repeat:#message} would be given again there.",
        "Nothing needs to be done; snapshots more often repeat less: replicatedSubscriptionsSnapshotFrequencyMillis.",
        ("mark_delete",),
    ),
    Code.SEGMENTS_FOLLOW: Meaning(
        "The place of subscription {subscription} follows it to {clusters:list} by the snapshots that the controllers of {topic} take of"
        " all segments, the last one at {snapshot}[; here it is at {acknowledged}][; they were told {told:list}].",
        "Nothing needs to be done; snapshots more often repeat less: replicatedSubscriptionsSnapshotFrequencyMillis.",
        ("would_repeat",),
    ),
    Code.VIEW_DRIVER_FAILED: Meaning(
        "The driver of pipeline {pipeline} failed, and the view stays as it was at epoch {epoch}: {error}.",
        "Mend the cause and run it again: `magnetar pipeline run` goes on behind the last committed epoch.",
    ),
    Code.VIEW_DRIVER_GONE: Meaning(
        "The driver of pipeline {pipeline} {how}, and the view stays as it was at epoch {epoch}.",
        "Run it again: `magnetar pipeline run` goes on behind the last committed epoch.",
    ),
    Code.VIEW_DRIVER_SILENT: Meaning(
        "The driver of pipeline {pipeline} ({process}) has not been heard of for {seconds:#second}; the view was at epoch {epoch} then.",
        "Look whether its process or its network hangs: `magnetar pipeline status` on its machine.",
    ),
    Code.VIEW_BACKFILLING: Meaning(
        "View {view} is being built from what its topics held before it was created.",
        "Wait: it has its rows with the next epoch.",
    ),
    Code.VIEW_WAITS_FOR_WATERMARK: Meaning(
        "Windows of {view} close when the watermark of {source} reaches their end; it stands at {watermark}[, while the others are ahead:"
        " {others:list}].",
        "Send rows with later times to the topics of {source}, if need be a heartbeat: time only goes on with rows.",
        ("stage", "topics", "lag"),
    ),
    Code.VIEW_BEHIND: Meaning(
        "{lag:#entry|is|are} in the topics that the view does not have yet, by source: {sources:list}.",
        "Wait; if it grows, use more units: `magnetar pipeline rescale`.",
        ("epoch",),
    ),
    Code.VIEW_CURRENT: Meaning(
        "The view has everything that its driver has seen, as of epoch {epoch}, which was committed at {committed}.",
        "Nothing needs to be done: the next row comes with the next epoch.",
    ),
    Code.VIEW_ROW_ABSENT: Meaning(
        "View {view} has no row for {key}, which would be in vnode {vnode} of unit {unit}: none came, a condition left it out, or it was"
        " taken away again.",
        "Look at the input: `magnetar topics peek-messages`, and at the statement: `magnetar pipeline explain`.",
    ),
    Code.VIEW_KEY_PLACED: Meaning(
        "The row of {key} is in vnode {vnode}, which unit {unit} has[; it was read from {files:list}].",
        "Nothing needs to be done; `--if-units` shows where another number of units would put it.",
    ),
}


class _Facts(Formatter):
    """Counts, lists, and what is left out."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("#"):
            noun, *verbs = format_spec[1:].split("|")
            return " ".join((counted(value, noun), *(verbs[:1] if value == 1 else verbs[1:])))
        if format_spec == "list":
            return listed(value)
        return str(value)


_FORMATTER = _Facts()
_OPTIONAL = re.compile(r"\[([^\]]*)\]")


def counted(number: Any, noun: str) -> str:
    """`1 entry`, `3 entries`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


def listed(values: Any) -> str:
    """`a`, `a and b`, `a, b and c`; of a mapping `name (number)`."""
    counts = values.items() if isinstance(values, Mapping) else ((value, None) for value in values)
    words = [str(name) if number is None else f"{name} ({number})" for name, number in counts]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else "nobody"


def names_in(template: str) -> set[str]:
    """The facts that a template names."""
    return {name for _, name, _, _ in _FORMATTER.parse(template.replace("[", "").replace("]", "")) if name}


def optional_in(code: Code) -> set[str]:
    """Facts that may be missing."""
    meaning = MEANINGS[code]
    return {
        name for text in (meaning.text, meaning.change) for part in _OPTIONAL.findall(text) for name in names_in(part)
    }


def facts_of(code: Code) -> set[str]:
    """Every fact that a reason of this code has."""
    meaning = MEANINGS[code]
    return names_in(meaning.text) | names_in(meaning.change) | set(meaning.facts)


def _filled(template: str, facts: Mapping[str, Any]) -> str:
    def kept(found: re.Match[str]) -> str:
        return found[1] if all(facts.get(name) for name in names_in(found[1])) else ""

    return _FORMATTER.vformat(_OPTIONAL.sub(kept, template), (), facts)


def text_of(reason: Reason) -> str:
    return _capital(_filled(MEANINGS[reason.code].text, reason.facts))


def change_of(reason: Reason) -> str:
    return _filled(MEANINGS[reason.code].change, reason.facts)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def verdict(subject: str, moving: bool | None, reasons: Collection[Reason]) -> str:
    """One sentence on the whole. `subject` begins it: "Subscription sub"."""
    first = next((text_of(reason) for reason in reasons), "")
    if moving is None:
        return first or f"{subject} has nothing to do."
    if moving:
        return f"{subject} is moving." if not first else f"{subject} is moving, but: {_uncapital(first)}"
    return f"{subject} stands still: {_uncapital(first)}" if first else f"{subject} stands still."


_KEPT = ("Consumer ", "Everything ", "Nobody ", "No ", "The ", "Message ", "Transaction ")


def _uncapital(text: str) -> str:
    """Sentences that begin with one of our own words go on in lower case; others may begin with a name."""
    return text[:1].lower() + text[1:] if text.startswith(_KEPT) else text


def plain(template: str) -> str:
    """For a reference: facts in braces and nothing else of the form of templates."""
    return re.sub(
        r"\{(\w+)(?::#([^|}]+)(?:\|[^|}]*\|([^}]*))?|:\w+)?\}", _shown, template.replace("[", "").replace("]", "")
    )


def _shown(found: re.Match[str]) -> str:
    words = [f"{{{found[1]}}}"]
    if found[2]:
        words.append(counted(2, found[2]).removeprefix("2 "))
    return " ".join([*words, found[3]] if found[3] else words)


def in_order(reasons: Iterable[Reason]) -> list[Reason]:
    """What weighs most first; equals as they came."""
    places = {code: place for place, code in enumerate(Code)}
    return sorted(reasons, key=lambda reason: places[reason.code])
