// Package combine carries out concurrent calls together.
//
// A server that takes a hundred microseconds for one command takes little more for sixty
// in one message. A [Combiner] makes use of that without a timer and without a goroutine
// that waits for work:
//
//   - A caller that finds a stream free runs its own call at once, on its own goroutine
//     and under its own context. A lone caller pays for one lock and one pool, nothing else.
//   - A caller that finds all streams taken queues. Whoever gives up a stream leaves behind
//     a goroutine that takes the whole queue as one batch, answers it, and goes on as long
//     as callers are queued. Then it ends: there is nothing to close, and an idle Combiner
//     costs nothing.
//
// # Streams
//
// A stream is the right to talk to the server: at most Streams calls or batches are under
// way at once. Few streams make large batches; many make short waits. With a few callers
// many streams are better (everybody goes direct), with many callers few are. Options.Crowd
// switches between the two.
//
// # Waiting for those just released
//
// A batch that answers n callers sets n callers free, who come back within microseconds.
// A stream that takes the queue at once misses them, and the callers split for ever into
// two halves that take turns. So with Options.WaitShare set, a batch waits until as many
// are queued as the last one answered and were queued then. It waits for a number, not for
// a time: never when alone, never longer than that share of what the last batch took or
// than a millisecond, and not on when nobody has come for a while. It polls with
// [runtime.Gosched], because a timer is a hundred times too coarse.
//
// # Leaving
//
// A queued caller whose context ends leaves the queue, and nothing of it is ever sent. One
// whose call is in a batch leaves too, but the batch keeps its call: the outcome is unknown.
// [Error].Sent tells the two apart. A batch runs under a context of its own, with the values
// of its first member's. That context ends when the last member has left, so neither
// one hasty caller nor the first one fails the others, and work that nobody waits for stops.
// A caller that goes direct is alone with its call: its context goes to run unchanged, and run
// says what its end means.
//
// Because a batch may outlive a caller, whatever In points at must not be changed after
// Do has returned an Error with Sent set. A driver encodes its request into memory of its
// own before it calls Do.
//
// # When run fails to answer
//
// An item that run returned without answering gets [ErrNoAnswer] with Sent set: silence is
// never taken for success. The same goes for all items of a batch whose run panicked or left
// by [runtime.Goexit], even those already answered, because a run may answer before it
// commits. The panic or Goexit itself goes to the first member that is still waiting; if all
// have left, it is dropped. A stream is given back in every case.
package combine
