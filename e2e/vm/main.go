// Command vm runs test suites under Debian's 6.1 kernel in QEMU, without acceleration: the only place on many
// machines with control groups of version 2 and the oldest kernel that Colloid supports. make vm starts it.
//
// The guest has no distribution: kernel and modules come from the Debian package; busybox, the suites' test
// binaries and the programs that they start lie on a disk of ext4, which is made here and counts what projects
// use. The kernel package is kept in the user's cache directory. The exit code is that of the suites, or 1 if a
// test was skipped that should not be; 77 says that this machine cannot run them.
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

// exitCannot says, as in automake, that nothing was tested.
const exitCannot = 77

var (
	only    = flag.String("only", "", "run these suites, with commas between them")
	pattern = flag.String("run", "", "run the tests that match, instead of the suites' own choice")
	memory  = flag.Int("memory", 1536, "MiB of the guest")
	timeout = flag.Duration("timeout", 12*time.Minute, "for the whole guest")
	counted = flag.Bool("counted", false, "run every suite, and not only those that measure, in a guest with one processor "+
		"and a clock that counts its instructions, a nanosecond each")
	figures = flag.Bool("figures", false, "print lines that begin with BENCH, and all others only if something failed")
	verbose = flag.Bool("v", false, "show the guest's kernel messages")
)

func main() {
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	code, err := run(ctx)
	var lack cannot
	if errors.As(err, &lack) {
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

func missing(tool string) error {
	return cannot{fmt.Errorf("%s is not installed (apt-get install qemu-system-x86 busybox-static e2fsprogs)", tool)}
}

func run(ctx context.Context) (int, error) {
	for _, tool := range []string{"qemu-system-x86_64", "dpkg-deb", "apt-get", "apt-cache"} {
		if _, err := exec.LookPath(tool); err != nil {
			return 0, missing(tool)
		}
	}
	kernel, err := findKernel(ctx)
	if err != nil {
		return 0, err
	}
	chosen, err := choose()
	if err != nil {
		return 0, err
	}
	work, err := os.MkdirTemp("", "colloid-vm-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(work)
	if err := os.Mkdir(filepath.Join(work, rootName), 0o755); err != nil {
		return 0, err
	}
	if err := compile(ctx, filepath.Join(work, rootName), chosen); err != nil {
		return 0, err
	}
	code := 0
	for _, counted := range []bool{false, true} {
		var group []suite
		for _, s := range chosen {
			if s.counted == counted {
				group = append(group, s)
			}
		}
		if len(group) == 0 {
			continue
		}
		one, err := runGuest(ctx, work, kernel, group)
		if err != nil {
			return 0, err
		}
		code = max(code, one)
	}
	return code, nil
}

// rootName is the directory that becomes the guest's disk.
const rootName = "root"

// runGuest runs suites of one kind in a guest of their own and returns the exit code.
func runGuest(ctx context.Context, work string, kernel kernel, chosen []suite) (int, error) {
	g := guest{kernel: kernel.image, initial: filepath.Join(work, "initial"), disk: filepath.Join(work, "disk"),
		result: filepath.Join(work, "result"), counted: chosen[0].counted, log: &log{}}
	if err := writeInitial(g.initial, kernel); err != nil {
		return 0, err
	}
	if err := writeDisk(ctx, g.disk, filepath.Join(work, rootName), chosen); err != nil {
		return 0, err
	}
	begin := time.Now()
	code, err := g.boot(ctx, chosen)
	if err == nil {
		g.log.printf("vm: kernel %s, %d suites, exit %d, %.1f s",
			kernel.release, len(chosen), code, time.Since(begin).Seconds())
	}
	if err != nil || code != 0 {
		g.log.flush()
	}
	return code, err
}

// log shows what the guest says, or keeps it until it is known whether somebody wants to see it.
type log struct {
	kept []string
}

func (l *log) printf(format string, arguments ...any) {
	line := fmt.Sprintf(format, arguments...)
	if !*figures || strings.HasPrefix(line, "BENCH ") {
		fmt.Println(line)
		return
	}
	l.kept = append(l.kept, line)
}

// flush shows on standard error what was kept.
func (l *log) flush() {
	for _, line := range l.kept {
		fmt.Fprintln(os.Stderr, line)
	}
	l.kept = nil
}
