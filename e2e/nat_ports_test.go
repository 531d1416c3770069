package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
)

// Two machines of one port behind one Linux router, which came to know the others in different order, are each seen at two
// ports. Their class is PUNCHED and stays so, and every pair is as theory has it, the one with a symmetric router
// among them (F32, F35). With COLLOID_E2E_LONG, since nothing of it is new to the kernel: the simulator has such a router.
func TestF32_F35_TwoMachinesOfOnePort(t *testing.T) {
	needRoot(t, "makes namespaces with routers between them")
	if !long() {
		t.Skip("takes a minute and more: with COLLOID_E2E_LONG")
	}
	t.Setenv("COLLOID_DEBUG", "1")
	f := startWith(t, cluster.Options{Apart: true, Routers: []cluster.Router{cluster.NoRouter, cluster.NoRouter, cluster.NoRouter,
		cluster.Symmetric, cluster.PortRestricted, cluster.NoHairpin, cluster.NoHairpin}})
	for i, target := range []int{1: 0, 2: 0, 3: 0, 4: 2, 5: 0, 6: 1} {
		if i > 0 {
			f.run(f.Cells[i], 0, "connect", f.Cells[target].Endpoint())
		}
	}
	begin := time.Now()
	var seen matrix
	err := cluster.WaitFor(t.Context(), 180*time.Second, "every pair to be as theory has it", func(ctx context.Context) error {
		now, err := f.matrix(ctx)
		if now.table != "" {
			seen = now
		}
		if err == nil && !strings.Contains(now.table, "s") {
			err = fmt.Errorf("nobody has searched")
		}
		return err
	})
	t.Logf("%v after all were there\n%s%v", time.Since(begin).Round(time.Millisecond), seen.table, seen.again)
	f.history(seen)
	if err != nil {
		t.Fatal(err)
	}
	changes := func() (count int) {
		for _, cell := range f.Cells[5:] {
			count += strings.Count(cell.LogTail(8<<20), "debug: global IPv4: ")
		}
		return count
	}
	before := changes()
	time.Sleep(20 * time.Second)
	if after := changes(); after != before {
		t.Errorf("the classes changed %d times", after-before)
	}
	for _, cell := range f.Cells[5:] {
		answer, err := f.netcheck(t.Context(), cell)
		if err != nil || answer.Network.Reach != "punched" {
			t.Errorf("%s: %v %+v", cell.Name, err, answer.Network)
		}
		t.Logf("%s: %+v", cell.Name, answer.Network.Candidates)
	}
}
