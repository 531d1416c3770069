package cell

import (
	"errors"
	"testing"
	"time"
)

// recorder is a Storage that notes the tickets of snapshots, and who says that a loss is over.
type recorder struct {
	nowhere
	snapshots []uint64
	recovered int
	joining   int
}

func (r *recorder) SaveSnapshot(ticket uint64, _ []byte) { r.snapshots = append(r.snapshots, ticket) }
func (r *recorder) SaveRecovered(uint64)                 { r.recovered++ }
func (r *recorder) SaveJoining(uint64, []byte)           { r.joining++ }

// F157: the directory does not forget a loss before a snapshot holds the state that made it good: a crash between the
// two would leave a part of the state that passes for all of it. A snapshot that could not be stored is made again.
func TestF157_ALossIsOverWhenASnapshotIsStored(t *testing.T) {
	c, r := lonely(t), &recorder{}
	c.config.Storage = r
	c.config.Lost = "writes.log damaged"
	c.endLoss()
	if len(r.snapshots) != 1 || r.recovered != 0 {
		t.Fatalf("before anything is stored: %d snapshots, recovered %d times", len(r.snapshots), r.recovered)
	}
	c.Stored(c.now, r.snapshots[0], errors.New("input/output error"))
	if r.recovered != 0 {
		t.Fatal("the loss is forgotten though the snapshot failed")
	}
	for limit := c.now.Add(10 * time.Minute); len(r.snapshots) == 1 && c.now < limit; {
		c.Tick(max(c.Deadline(), c.now.Add(time.Millisecond)))
	}
	if len(r.snapshots) != 2 {
		t.Fatal("the snapshot is not made again")
	}
	c.Stored(c.now, r.snapshots[1], nil)
	c.Stored(c.now, r.snapshots[1], nil)
	if r.recovered != 1 {
		t.Errorf("recovered %d times", r.recovered)
	}
}
