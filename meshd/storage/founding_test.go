package storage

import (
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// F4: a cell that has left is in its new cluster whatever the disk says. While the directory still names the
// one before, nothing that it writes in the new one may be acknowledged: the next start would not know it. A
// cell that could not join stays where it was, and goes on writing there.
func TestF4_NothingIsAcknowledgedInAClusterThatIsNotStored(t *testing.T) {
	for name, next := range map[string]Cluster{
		"left":          {Key: [32]byte{2}},
		"met the first": {Key: [32]byte{1}, Joined: true},
		"not joined":    {Key: [32]byte{2}, Joined: true},
	} {
		t.Run(name, func(t *testing.T) {
			disk := newMemoryDisk()
			ended := make(chan error, 8)
			options := Options{Window: -1, Completed: func(_ uint64, err error) { ended <- err }}
			d, _, err := openDisk(disk, "/state", "m", options)
			if err != nil {
				t.Fatal(err)
			}
			d.SaveCluster(1, Cluster{Key: [32]byte{1}})
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			disk.mutex.Lock()
			// The first file in another cluster is the inventory: making and removing it fails, and the same
			// for the cluster.
			disk.target, disk.last, disk.fault = disk.calls+1, disk.calls+4, unix.EIO
			disk.mutex.Unlock()
			d.SaveCluster(2, next)
			if err := <-ended; err == nil {
				t.Fatal("the cluster could be stored: the test shows nothing")
			}
			d.AppendWrite(3, []byte("write"))
			appended := <-ended
			d.Close()
			_, loaded, err := openDisk(disk.crash(rand.New(rand.NewPCG(1, 1))), "/state", "m", options)
			if err != nil {
				t.Fatal(err)
			}
			stays := name == "not joined"
			if appended == nil && (loaded.Cluster == next) == stays {
				t.Errorf("a write was acknowledged, and the directory says %+v", loaded.Cluster)
			}
			if appended != nil && stays {
				t.Errorf("a write in the cluster that the cell stays in: %v", appended)
			}
		})
	}
}
