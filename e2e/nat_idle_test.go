package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"colloid.net/e2e/cluster"
)

// A cell behind a router that uses another port for each destination is a full member (F36): while nothing happens
// nobody writes anything about it, for some seconds or, with COLLOID_E2E_LONG, for ten minutes; then it hears a write
// of every other cell within two seconds, and from every other cell its workload's logs are read and a program is run
// in it (STREAM-3).
func TestF36_IdleBehindASymmetricRouter(t *testing.T) {
	needRoot(t, "makes namespaces with a router between them")
	const port = 18080
	line := operatorKey(t, "nadia")
	f := startWith(t, cluster.Options{Routers: cluster.Behind(cluster.Symmetric, 4), Denied: []int{0, 1, 2},
		PolicyLines: "exec hello\n" + line})
	relayed, others := f.Cells[3], f.Cells[:3]
	f.run(f.Cells[0], 0, "apply", "-f", f.file(fmt.Sprintf("spread hello {\n\tprocess %s\n\treplicas 1\n\tport %d\n}\n",
		f.Program("hello"), port)))
	f.wait("the workload behind the router", func(ctx context.Context) error {
		_, err := relayed.Command(ctx, "exec", "hello/0", "--", "true")
		return err
	})
	status, err := relayed.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.wait("the router to be seen for what it is", func(ctx context.Context) error {
		check, err := f.netcheck(ctx, relayed)
		if err == nil && (check.Network.Reach != "relayed" || len(check.Network.Homes) != 2) {
			return fmt.Errorf("%+v", check.Network)
		}
		return err
	})

	watched := 10 * time.Second
	if long() {
		watched = 10 * time.Minute
	}
	keys := []string{"health." + status.Cell.ID + ".status", "health." + status.Cell.ID + ".contact"}
	read := func() (text string) {
		for _, key := range keys {
			text += f.run(f.Cells[0], 0, "get", key, "-o", "json")
		}
		return text
	}
	f.wait("its contact to be published", func(context.Context) error {
		// Its second home is in netcheck at once and in the contact up to two seconds later.
		first := read()
		time.Sleep(5 * time.Second)
		if read() != first {
			return errors.New("it is still being written")
		}
		return nil
	})
	before := read()
	time.Sleep(watched)
	if after := read(); after != before {
		t.Errorf("something about the relayed cell was written while nothing happened:\n%s\n%s", before, after)
	}
	for i, from := range others {
		took := f.reaches(from, relayed, fmt.Sprintf("idle%d", i), 2*time.Second)
		begin := time.Now()
		logs := f.run(from, 0, "logs", "hello/0")
		read := time.Since(begin)
		begin = time.Now()
		printed := f.run(from, 0, "exec", "hello/0", "--", "/bin/sh", "-c", "echo from $0", from.Name)
		if !strings.Contains(logs, "hello: listening on ") || strings.TrimSpace(printed) != "from "+from.Name {
			t.Errorf("%s: logs %q, exec %q", from.Name, logs, printed)
		}
		t.Logf("%s after %v of silence: a write is there after %v, logs took %v, exec %v", from.Name, watched,
			took.Round(time.Millisecond), read.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	}
}

// Two cells behind symmetric routers never meet: what a program prints on one of them reaches the other through a
// relay, all of it, as it was (F36, STREAM-3).
func TestF36_OutputPassesARelay(t *testing.T) {
	needRoot(t, "makes namespaces with routers between them")
	line := operatorKey(t, "nadia")
	f := startWith(t, cluster.Options{
		Routers:     []cluster.Router{cluster.NoRouter, cluster.Symmetric, cluster.Symmetric},
		Denied:      []int{0, 1},
		PolicyLines: "exec hello\n" + line,
	})
	from, to := f.Cells[1], f.Cells[2]
	f.run(from, 0, "apply", "-f", f.file(fmt.Sprintf("spread hello {\n\tprocess %s\n\treplicas 1\n\tport 18080\n}\n", f.Program("hello"))))
	f.wait("the workload behind the other router", func(ctx context.Context) error {
		_, err := to.Command(ctx, "exec", "hello/0", "--", "true")
		return err
	})
	text := strings.Repeat("through a relay and back\n", 40000) // 1 MB
	begin := time.Now()
	got := f.run(from, 0, "exec", "hello/0", "--", "/bin/sh", "-c", "yes through a relay and back | head -n 40000")
	if got != text {
		t.Errorf("%d bytes of %d came back, or others", len(got), len(text))
	}
	t.Logf("1 MB between two symmetric routers took %v", time.Since(begin).Round(time.Millisecond))
}
