package stream

import "fmt"

// State is where a stream stands, as one of its two ends sees it (F152).
type State uint8

// States. Data may be written in Open and RemoteFin, read until the end in every state but Opening.
const (
	Opening   State = iota // STREAM_OPEN is on its way, no answer yet
	Incoming               // the other cell's STREAM_OPEN waits for Accept or Reject here
	Open                   // both directions
	LocalFin               // this end has said CLOSE, which is not acknowledged
	LocalDone              // it is acknowledged; the other direction goes on
	RemoteFin              // everything of the other end has arrived, its CLOSE too
	Closing                // both have said CLOSE, this end's is not acknowledged
	Closed                 // nothing is sent any more
	stateCount
)

var stateNames = [stateCount]string{
	"opening", "incoming", "open", "local-fin", "local-done", "remote-fin", "closing", "closed",
}

// String returns the name for status output.
func (s State) String() string { return stateNames[s] }

// event is what moves a stream from one state to another.
type event uint8

const (
	eventAccept   event = iota // STREAM_ACK 0, sent or received
	eventFinish                // CLOSE goes into the queue
	eventFinished              // and is acknowledged
	eventEnd                   // everything up to the other end's CLOSE has arrived
	eventReset                 // RST, sent or received; refusal
	eventTimeout               // no answer for too long
	eventCount
)

// invalid marks what cannot happen: the code that raises the event has checked the state before.
const invalid = stateCount

// transitions is the whole machine; the test compares it with what SPEC-REVIEW Part 1 section 16 says.
var transitions = [stateCount][eventCount]State{
	Opening:   {Open, invalid, invalid, invalid, Closed, Closed},
	Incoming:  {Open, invalid, invalid, invalid, Closed, Closed},
	Open:      {Open, LocalFin, invalid, RemoteFin, Closed, Closed},
	LocalFin:  {LocalFin, invalid, LocalDone, Closing, Closed, Closed},
	LocalDone: {LocalDone, invalid, invalid, Closed, Closed, Closed},
	RemoteFin: {RemoteFin, Closing, invalid, invalid, Closed, Closed},
	Closing:   {Closing, invalid, Closed, invalid, Closed, Closed},
	Closed:    {Closed, invalid, invalid, invalid, Closed, Closed},
}

// next moves on. An event that the state does not know is a broken invariant.
func (s State) next(e event) State {
	to := transitions[s][e]
	if to == invalid {
		panic(fmt.Sprintf("stream: event %d in state %v", e, s))
	}
	return to
}

// writable reports whether this end may still send data.
func (s State) writable() bool { return s == Open || s == RemoteFin }

// receiving reports whether data of the other end may still come.
func (s State) receiving() bool { return s == Open || s == LocalFin || s == LocalDone }

// established reports whether both ends have agreed on keys and none is through.
func (s State) established() bool { return s >= Open && s < Closed }

// Reason says why a stream ended; it travels in CLOSE.
type Reason uint8

// Reasons. The numbers are part of the protocol.
const (
	ReasonNone      Reason = iota // an orderly end
	ReasonCanceled                // the one who opened it does not want it any more
	ReasonRefused                 // not allowed
	ReasonNotFound                // no such workload or instance here
	ReasonKind                    // this cell does not know the kind of stream
	ReasonBusy                    // a bound is reached: try again later, or elsewhere
	ReasonTimeout                 // no answer
	ReasonProtocol                // the other end broke the rules
	ReasonNoRoute                 // a relay does not know the stream, or no way to the target
	ReasonHops                    // more than HopsMax relays
	ReasonLoop                    // the relay has this stream already, from another direction
	ReasonFailed                  // the service broke off
	ReasonStopping                // the cell stops, or left the cluster
	ReasonForgotten               // the other cell knows nothing of the stream any more: it was restarted
	reasonCount
)

var reasonNames = [reasonCount]string{
	"done", "canceled", "refused", "not found", "unknown kind of stream", "busy", "no answer", "protocol error",
	"no route", "too many hops", "loop", "failed", "cell stops", "its daemon was restarted",
}

// String returns the text for people.
func (r Reason) String() string {
	if r < reasonCount {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}
