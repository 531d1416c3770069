package cell

import (
	"fmt"
	"time"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/state"
)

// Load of the host is shown to people. It is published seldom: a figure that follows every breath of a
// machine would cost a thousand cells three thousand writes a second (F59).
const (
	// loadSmoothing is the time constant of the moving average.
	loadSmoothing = 30 * time.Second
	// loadPublishInterval is the least time between two writes of one figure.
	loadPublishInterval = 30 * time.Second
	// A figure is written when it moved by 15 % of the last one written and by 5 points at least; the
	// second bound also covers a last one of zero.
	loadRelativePercent = 15
	loadPoints          = 5
	// hundredth: figures are kept in hundredths of a point, so that smoothing is exact integer arithmetic
	// and equal on every machine.
	hundredth = 100
)

// HostLoad is one sample, in hundredths of a percent.
type HostLoad struct{ CPU, Memory, Disk int }

// loadFigure is one smoothed figure and what was last said of it.
type loadFigure struct {
	known     bool
	average   int // hundredths of a point
	said      int // points
	saidAt    clock.Instant
	published bool
}

type loadState struct {
	sampled clock.Instant
	figures [3]loadFigure
}

var loadFields = [3]string{state.LoadCPU, state.LoadMemory, state.LoadDisk}

// Load takes a sample of the host's load, about every 5 s.
func (c *Cell) Load(now clock.Instant, sample HostLoad) {
	c.now = now
	elapsed := now.Sub(c.load.sampled)
	c.load.sampled = now
	c.noteDisk(sample.Disk)
	for i, value := range [3]int{sample.CPU, sample.Memory, sample.Disk} {
		f := &c.load.figures[i]
		if !f.known {
			f.saidAt = now // an average over less than the interval says nothing
		}
		f.add(min(max(value, 0), 100*hundredth), elapsed)
		if c.phase == Active && f.worthSaying(now) {
			f.said, f.saidAt, f.published = (f.average+hundredth/2)/hundredth, now, true
			c.publish(state.LoadKey(c.config.Self, loadFields[i]), state.AppendLoad(nil, uint8(f.said)))
		}
	}
	c.drain()
}

// A disk that fills up is an alarm before writes fail, and no longer one when it is clearly below that: in
// hundredths of a percent of the file system that holds the state directory.
const (
	diskFull      = 100 * hundredth
	diskShort     = 95 * hundredth
	diskShortOver = 94 * hundredth
)

// noteDisk shows a disk that is full, or nearly so, as it is now and not on average.
func (c *Cell) noteDisk(used int) {
	const hint = "free space there, for instance with `colloid image prune`, or start with another --directory"
	switch {
	case used >= diskFull: // the next write fails, and nobody may be writing now
		c.alarms.raise(alarmDisk, "critical", "the file system of the state directory "+c.config.Directory+" is full", hint)
	case used >= diskShort, used >= diskShortOver && c.alarms.has(alarmDisk):
		c.alarms.raise(alarmDisk, "warning", fmt.Sprintf("the file system of the state directory %s is %d %% full",
			c.config.Directory, used/hundredth), hint)
	default:
		c.alarms.clear(alarmDisk)
	}
}

// add moves the average towards a sample by the share of the time constant that has passed.
func (f *loadFigure) add(value int, elapsed time.Duration) {
	if !f.known || elapsed >= loadSmoothing {
		f.known, f.average = true, value
		return
	}
	f.average += (value - f.average) * int(elapsed/time.Millisecond) / int(loadSmoothing/time.Millisecond)
}

func (f *loadFigure) worthSaying(now clock.Instant) bool {
	if now.Sub(f.saidAt) < loadPublishInterval {
		return false
	}
	if !f.published {
		return true
	}
	moved := f.average - f.said*hundredth
	if moved < 0 {
		moved = -moved
	}
	return moved >= loadPoints*hundredth && moved*100 >= f.said*hundredth*loadRelativePercent
}
