package control

import (
	"sync"
	"sync/atomic"
	"testing"

	"colloid.net/ipc/uds"
)

// F136: clients that open their first stream at the same moment do not all get the last place.
func TestF136_TheLastPlaceForStreamsIsGivenOnce(t *testing.T) {
	for range 20 {
		s := streamServer(t)
		var clients []*client
		for range uds.ClientsMax {
			_, theirs := pairOf(t)
			c := newClient(s, theirs, credentials{}, levelWrite)
			if reason := s.add(c); reason != "" {
				t.Fatal(reason)
			}
			clients = append(clients, c)
		}
		var group sync.WaitGroup
		var taken atomic.Int32
		begin := make(chan struct{})
		for i, c := range clients {
			group.Go(func() {
				<-begin
				reason := ""
				if i%2 == 0 {
					reason = c.streamRoom(&sink{client: c, handle: 1, cell: 1})
				} else {
					reason = c.enterFile(&passed{func() {}})
				}
				if reason == "" {
					taken.Add(1)
				}
			})
		}
		close(begin)
		group.Wait()
		s.Close()
		if taken.Load() != uds.StreamingClientsMax {
			t.Fatalf("%d places were given, there are %d", taken.Load(), uds.StreamingClientsMax)
		}
	}
}
