package cell

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"colloid.net/ipc/uds"
)

// Names of alarms. One name is raised once, whatever happens how often.
const (
	alarmDuplicateDot = "duplicate-dot"
	alarmIdentity     = "identity"
	alarmSpent        = "spent"
	alarmLost         = "lost"
	alarmArrival      = "arrival"
	alarmOwnDot       = "own-dot"
	alarmSnapshot     = "snapshot"
	alarmStorage      = "storage"
	alarmDisk         = "disk"
	alarmMembers      = "members"
	alarmPath         = "path"
	alarmLink         = "link"
	alarmJoining      = "joining"
)

// Names of alarms about what the process around the cell sees.
const (
	AlarmDirectory = "directory" // files of the state directory
	AlarmSocket    = "socket"    // the command socket
	AlarmAddress   = "address"   // the host lacks the address of this cell
)

// HostAlarm shows or, with an empty text, withdraws an alarm of the process around the cell. The names are
// the constants above.
func (c *Cell) HostAlarm(name, severity, text, hint string) {
	if name != AlarmDirectory && name != AlarmSocket && name != AlarmAddress {
		panic("cell: no alarm of the host is named " + name)
	}
	if text == "" {
		c.alarms.clear(name)
		return
	}
	c.alarms.raise(name, severity, text, hint)
	if name == AlarmDirectory && c.storageError != "" && strings.Contains(c.storageError, text) {
		c.alarms.clear(alarmStorage) // one cause, one alarm
	}
}

// SetJoining notes how far the cell is with joining the cluster that its command line names; empty: it is in
// it. With failed set, status shows it; with final set, nobody tries any more and a person has to act.
func (c *Cell) SetJoining(text string, failed, final bool) {
	c.joiningText = text
	switch {
	case text == "" || !failed:
		c.alarms.clear(alarmJoining)
	case final:
		c.alarms.raise(alarmJoining, "critical", text, "this cell is a cluster of its own: `colloid connect HOST` when the reason is gone")
	default:
		c.alarms.raise(alarmJoining, "warning", text, "this cell is a cluster of its own until then; it keeps trying")
	}
}

// Hello is what the cell answers to HELLO. It changes with Phase and Joining only.
func (c *Cell) Hello() uds.HelloReply {
	return uds.HelloReply{
		Protocol: uds.ProtocolVersion, Cell: c.config.Self.String(), Version: c.config.Software,
		State: c.phase.String(), Joining: c.joiningText,
	}
}

// Joining says what keeps the cell from joining, "" if nothing does.
func (c *Cell) Joining() string { return c.joiningText }

// alarmBook holds what an operator should know. Its size is bounded by the number of names above.
type alarmBook struct{ raised map[string]uds.Alarm }

func (b *alarmBook) raise(name, severity, text, hint string) {
	if b.raised == nil {
		b.raised = make(map[string]uds.Alarm)
	}
	b.raised[name] = uds.Alarm{Severity: severity, Text: text, Hint: hint}
}

func (b *alarmBook) has(name string) bool {
	_, raised := b.raised[name]
	return raised
}

func (b *alarmBook) clear(name string) { delete(b.raised, name) }

func (b *alarmBook) list() []uds.Alarm {
	alarms := make([]uds.Alarm, 0, len(b.raised))
	for _, alarm := range b.raised {
		alarms = append(alarms, alarm)
	}
	slices.SortFunc(alarms, func(x, y uds.Alarm) int { return strings.Compare(x.Text, y.Text) })
	return alarms
}

// counters are shown by `colloid status --metrics`.
type counters struct {
	received, sent, sentBytes       uint64
	malformed, unsealed, rejected   uint64
	unhandled, unroutable, guarded  uint64
	joinsDropped, sessions          uint64
	tooNarrow                       uint64
	relayed, passedOn, relayRefused uint64
	otherVersion, noVersion         uint64
	suspects, deaths, refutations   uint64      // statuses written here: about others, and of this cell (F64)
	unknownTypes                    [256]uint64 // by message type (F26)
	actions, actionsDelayed         uint64
}

func (c *Cell) log(level Level, text string) {
	if c.config.Logger != nil {
		c.config.Logger.Log(level, text)
	}
}

// hex64 is how 64-bit digests and ids look everywhere (F61).
func hex64(v uint64) string { return fmt.Sprintf("%016x", v) }

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
