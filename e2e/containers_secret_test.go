package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"colloid.net/e2e/cluster"
)

// Secrets and files reach a container on another cell than where they were applied, also after its daemons were killed,
// and nothing on any disk and no datagram between cells shows them. A changed secret is an update (F83).
func TestF83_SecretsReachContainersAndNothingElse(t *testing.T) {
	t.Parallel()
	c := startContainers(t, nil)
	c.push("web:1", "one", nil)
	secrets := []string{"s3cret-variable-of-the-test", "c0ntent-of-the-file-of-the-test"}
	wire := c.capture(secrets)
	apply := func(variable string) {
		t.Helper()
		// The server reads them into memory: what it serves must not lie on a disk either.
		c.run(c.Cells[0], 0, "apply", "-f", c.webFile(c.in("web:1"), 3, "env PLAIN visible", "secret PASSWORD from literal "+variable,
			"file /etc/app/key from literal "+secrets[1]+" mode=0440",
			`args sh -c "(echo $PLAIN $PASSWORD; cat /etc/app/key) > /dev/shm/index.html; `+
				`exec httpd -f -p 8080 -h /dev/shm"`))
	}
	apply(secrets[0])
	c.serve(3, "visible "+secrets[0]+"\n"+secrets[1])
	if out := c.run(c.Cells[1], 0, "get", "web"); strings.Contains(out, secrets[0]) || !strings.Contains(out, "PASSWORD") {
		t.Errorf("get prints %s", out)
	}
	for _, cell := range c.Cells {
		endProgram(t, cell, "runnerd", unix.SIGKILL)
		endProgram(t, cell, "meshd", unix.SIGKILL)
	}
	c.serve(3, "visible "+secrets[0]+"\n"+secrets[1])
	secrets = append(secrets, "an0ther-variable-of-the-test")
	apply(secrets[2])
	c.serve(3, "visible "+secrets[2]+"\n"+secrets[1])
	for _, secret := range secrets {
		if places := c.find(secret); len(places) > 0 {
			t.Errorf("%q stands in %v", secret, places)
		}
	}
	if datagrams := wire(); datagrams < 100 {
		t.Errorf("%d frames were looked at", datagrams)
	}
}

// find looks for a text in every file below the cluster's directory, mounted or not, and in every command line.
func (c *containers) find(text string) (places []string) {
	c.t.Helper()
	err := filepath.WalkDir(c.Directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil // it went away meanwhile
		}
		content, err := os.ReadFile(path)
		if err == nil && bytes.Contains(content, []byte(text)) {
			places = append(places, path)
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err == nil && bytes.Contains(line, []byte(text)) {
			places = append(places, path)
		}
	}
	return places
}

// capture looks at every frame that passes the switch between the cells, until the function that it returns is called:
// that reports an error if one of the texts was seen, and gives the number of frames.
func (c *containers) capture(texts []string) func() int {
	c.t.Helper()
	socket := -1
	err := cluster.InNamespace(filepath.Join(c.Directory, "network", "switch"), func() (err error) {
		const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8 // in the order of the network
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		return err
	})
	if err == nil {
		err = unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	var frames atomic.Int64
	quit, over := make(chan struct{}), make(chan error, 1)
	go func() {
		frame := make([]byte, 1<<16)
		for {
			select {
			case <-quit:
				over <- nil
				return
			default:
			}
			n, _, err := unix.Recvfrom(socket, frame, 0)
			if err != nil {
				continue
			}
			frames.Add(1)
			for _, text := range texts {
				if bytes.Contains(frame[:n], []byte(text)) {
					over <- fmt.Errorf("%q was sent from cell to cell", text)
					return
				}
			}
		}
	}()
	return func() int {
		close(quit)
		if err := <-over; err != nil {
			c.t.Error(err)
		}
		unix.Close(socket)
		return int(frames.Load())
	}
}
