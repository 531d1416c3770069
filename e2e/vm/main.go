// Command vm runs test suites under Debian's 6.1 kernel in QEMU, without acceleration: the only place on many
// machines with control groups of version 2 and the oldest kernel that Colloid supports. make vm starts it.
//
// The guest has no disk and no distribution: kernel and modules come from the Debian package, everything
// else (busybox, test binaries compiled here) travels in the initial RAM disk. The kernel package is kept in
// the user's cache directory. The exit code is that of the suites; 77 says that this machine cannot run them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// suite is one test binary and what of it is run in the guest.
type suite struct {
	name, packagePath, run string
}

var suites = []suite{
	{"guest", "./runnerd/guest", "."},
	{"cgroup", "./runnerd/cgroup", "."},
	{"reactor", "./meshd/reactor", "."},
}

// exitCannot says, as in automake, that nothing was tested.
const exitCannot = 77

var (
	only    = flag.String("only", "", "run one suite")
	pattern = flag.String("run", "", "run the tests that match, instead of the suites' own choice")
	memory  = flag.Int("memory", 1536, "MiB of the guest")
	timeout = flag.Duration("timeout", 8*time.Minute, "for the whole guest")
	verbose = flag.Bool("v", false, "show the guest's kernel messages")
)

func main() {
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	code, err := run(ctx)
	var missing cannot
	if errors.As(err, &missing) {
		fmt.Fprintf(os.Stderr, "vm: not run: %v\n", err)
		os.Exit(exitCannot)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "vm: %v\n", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// cannot is an error that says what this machine lacks.
type cannot struct{ error }

func run(ctx context.Context) (int, error) {
	for _, tool := range []string{"qemu-system-x86_64", "dpkg-deb", "apt-get", "apt-cache"} {
		if _, err := exec.LookPath(tool); err != nil {
			return 0, cannot{fmt.Errorf("%s is not installed (apt-get install qemu-system-x86 busybox-static)", tool)}
		}
	}
	kernel, err := findKernel(ctx)
	if err != nil {
		return 0, err
	}
	work, err := os.MkdirTemp("", "colloid-vm-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	chosen, err := compile(ctx, work)
	if err != nil {
		return 0, err
	}
	image := filepath.Join(work, "initrd")
	if err := writeImage(image, kernel, work, chosen); err != nil {
		return 0, err
	}
	begin := time.Now()
	code, err := boot(ctx, kernel.image, image, work)
	if err == nil {
		fmt.Printf("vm: kernel %s, %d suites, exit %d, %.1f s\n",
			kernel.release, len(chosen), code, time.Since(begin).Seconds())
	}
	return code, err
}

// compile builds the test binaries of the chosen suites.
func compile(ctx context.Context, work string) ([]suite, error) {
	var chosen []suite
	for _, s := range suites {
		if *only != "" && *only != s.name {
			continue
		}
		if *pattern != "" {
			s.run = *pattern
		}
		command := exec.CommandContext(ctx, "go", "test", "-c", "-o", filepath.Join(work, s.name+".test"), s.packagePath)
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64", "GOOS=linux")
		command.Stderr = os.Stderr
		if err := command.Run(); err != nil {
			return nil, fmt.Errorf("compile %s: %w", s.packagePath, err)
		}
		chosen = append(chosen, s)
	}
	if len(chosen) == 0 {
		var names []string
		for _, s := range suites {
			names = append(names, s.name)
		}
		return nil, fmt.Errorf("no suite %q: there are %s", *only, strings.Join(names, ", "))
	}
	return chosen, nil
}
