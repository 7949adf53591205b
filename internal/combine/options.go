package combine

import "time"

// Options tune a [Combiner]. The zero value is one stream, batches of up to 512, no wait.
type Options[In any] struct {
	// Streams is how many calls and batches may be under way at once, at least 1.
	// A connection pool behind run should have as many connections.
	Streams int

	// Crowd is the number of callers from which on only CrowdStreams are used, so that
	// batches grow. 0: never. Callers count while they are in Do, and after a batch until
	// they have come back, so that a large batch that ends does not look like an empty house.
	Crowd int

	// CrowdStreams is the number of streams in a crowd: at least 1, at most Streams.
	CrowdStreams int

	// Max is the largest number of calls in a batch.
	Max int

	// Weigh and MaxWeight bound the sum of the weights in a batch, for servers that bound
	// the size of a message. A call that is heavier than MaxWeight goes alone. Do calls
	// Weigh for every call, so it should be quick.
	Weigh     func(In) int
	MaxWeight int

	// WaitShare is the share of the last batch's duration that the next one may wait for
	// the callers just released. 0: no wait. An eighth is a good value when one or two
	// streams serve many callers who come back at once.
	WaitShare float64
}

// maxWait bounds a wait whatever the last batch took: after an outage of seconds, callers
// still come back within microseconds or not at all.
const maxWait = time.Millisecond

func (o Options[In]) withDefaults() Options[In] {
	o.Streams = max(o.Streams, 1)
	if o.Crowd <= 0 {
		o.CrowdStreams = o.Streams
	}
	o.CrowdStreams = min(max(o.CrowdStreams, 1), o.Streams)
	if o.Max <= 0 {
		o.Max = 512
	}
	return o
}
