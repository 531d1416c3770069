package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
)

// Cells with addresses of IP version 6 alone, behind firewalls that let in nothing but answers: nobody translates, a
// stranger gets through to none of the two, and they talk straight all the same, since both send at once (F33, F35).
// Their class is what dial-backs say, although they see themselves at their own address (F31).
func TestF31_F33_F35_Version6BehindFirewalls(t *testing.T) {
	needRoot(t, "makes namespaces with firewalls")
	f := startWith(t, cluster.Options{Cells: 5, Version6: true, Firewalled: []int{3, 4}})
	begin := time.Now()
	err := cluster.WaitFor(t.Context(), 60*time.Second, "every pair to be direct", func(ctx context.Context) error {
		for i, cell := range f.Cells {
			answer, err := f.netcheck(ctx, cell)
			if err != nil {
				return err
			}
			want := "public"
			if i >= 3 {
				want = "punched"
			}
			if n := answer.Network; n.Reach != want || n.Mapping != "none" || n.Translated || (len(n.Homes) == 2) != (i >= 3) {
				return fmt.Errorf("%s: %+v", cell.Name, n)
			}
			for _, peer := range answer.Peers {
				if peer.Path != "direct" && peer.Path != "punched" || peer.PathAttempts > 1 {
					return fmt.Errorf("%s to %s: %s after %d attempts", cell.Name, peer.Address, peer.Path, peer.PathAttempts)
				}
			}
			if len(answer.Peers) != 4 {
				return fmt.Errorf("%s has %d peers", cell.Name, len(answer.Peers))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("every pair is direct %v after all cells were there", time.Since(begin).Round(time.Millisecond))
	f.reaches(f.Cells[3], f.Cells[4], "through", 2*time.Second)
	f.reaches(f.Cells[4], f.Cells[0], "back", 2*time.Second)
}
