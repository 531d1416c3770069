package reactor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// F124: each rung of the ladder is taken when the ones above are refused, and works.
func TestF124_SetupFlagsLadder(t *testing.T) {
	for refused := range len(ringModes) {
		tries := 0
		options := small(DriverURing, loopback4)
		options.setup = func(entries uint32, p *ringParameters) (int, error) {
			if tries++; tries <= refused {
				return -1, unix.EINVAL
			}
			return ringSetup(entries, p)
		}
		r := open(t, options)
		if r.Driver() != ringModes[refused].name {
			t.Errorf("%d refusals: driver %q, want %q", refused, r.Driver(), ringModes[refused].name)
		}
		stop := run(t, r, echo(r))
		roundTrip(t, dial(t, r.LocalAddress()), ringModes[refused].name)
		stop()
	}
}

// F126: the completion queue is twice the submission queue.
func TestF126_CompletionQueueIsTwiceTheSubmissionQueue(t *testing.T) {
	options := small(DriverURing, loopback4)
	open(t, options)
	options.setup = func(entries uint32, p *ringParameters) (int, error) {
		fd, err := ringSetup(entries, p)
		if p.completionEntries != 2*p.submissionEntries {
			t.Errorf("%d and %d entries", p.submissionEntries, p.completionEntries)
		}
		return fd, err
	}
	open(t, options)
}

// F111, F125: a refusal of any kind leads to epoll, and the status line says why.
func TestF111_FallsBackAndSaysWhy(t *testing.T) {
	refuse := func(err error) func(uint32, *ringParameters) (int, error) {
		return func(uint32, *ringParameters) (int, error) { return -1, err }
	}
	old := func(entries uint32, p *ringParameters) (int, error) {
		fd, err := ringSetup(entries, p)
		p.features &^= featureSingleMap
		return fd, err
	}
	for _, test := range []struct {
		setup func(uint32, *ringParameters) (int, error)
		want  string
	}{
		{refuse(unix.EPERM), "epoll (io_uring refused: operation not permitted)"},
		{refuse(unix.ENOSYS), "epoll (io_uring refused: function not implemented)"},
		{refuse(unix.ENOMEM), "epoll (io_uring refused: cannot allocate memory)"},
		{refuse(unix.EINVAL), "epoll (io_uring refused: no set of setup flags is accepted: invalid argument)"},
		{old, "Linux 6.0 is needed"},
	} {
		options := small(DriverAuto, loopback4)
		options.setup = test.setup
		r := open(t, options)
		if !strings.Contains(r.Driver(), test.want) {
			t.Errorf("driver %q, want %q in it", r.Driver(), test.want)
		}
		run(t, r, echo(r))
		roundTrip(t, dial(t, r.LocalAddress()), "ping")

		options.Driver = DriverURing
		if r, err := Open(options); err == nil {
			r.Close()
			t.Errorf("%s: io_uring was demanded and epoll given", test.want)
		}
	}
}

// Without IOSQE_CQE_SKIP_SUCCESS (before Linux 5.17, or hidden) each send has its completion.
func TestSendWithoutSkippedCompletions(t *testing.T) {
	options := small(DriverURing, loopback4)
	options.without = featureSkipSuccess
	r := open(t, options)
	run(t, r, echo(r))
	c := dial(t, r.LocalAddress())
	for range 500 {
		roundTrip(t, c, "ping")
	}
}

const seccompChild = "REACTOR_TEST_SECCOMP"

// F125: the way containers forbid io_uring, by a seccomp filter, in a process of its own.
func TestF125_SeccompDeniesURing(t *testing.T) {
	if os.Getenv(seccompChild) != "" {
		seccompMain(t)
		return
	}
	child := exec.Command(os.Args[0], "-test.run=^TestF125_SeccompDeniesURing$", "-test.v")
	child.Env = append(os.Environ(), seccompChild+"=1")
	output, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if strings.Contains(string(output), "SKIP") {
		t.Skip("seccomp filters are not available")
	}
	if want := "driver=epoll (io_uring refused: operation not permitted)"; !strings.Contains(string(output), want) {
		t.Errorf("want %q in\n%s", want, output)
	}
}

func seccompMain(t *testing.T) {
	if err := denyURing(); err != nil {
		t.Skip(err)
	}
	r := open(t, small(DriverAuto, loopback4))
	fmt.Printf("driver=%s\n", r.Driver())
	run(t, r, echo(r))
	roundTrip(t, dial(t, r.LocalAddress()), "ping")
	if _, err := Open(small(DriverURing, loopback4)); !errors.Is(err, unix.EPERM) {
		t.Errorf("io_uring: %v", err)
	}
}

// denyURing installs a filter on all threads that answers io_uring_setup with EPERM.
func denyURing() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}

// F34: where the kernel has no IPv6 the wildcard means IPv4. The error is made up.
func TestF34_WithoutIPv6(t *testing.T) {
	bind := netip.MustParseAddrPort("[::]:0")
	for _, errno := range []unix.Errno{unix.EAFNOSUPPORT, unix.EADDRNOTAVAIL} {
		if !withoutIPv6(&socketError{"socket", bind, errno}) {
			t.Errorf("%v is not taken for a kernel without IPv6", errno)
		}
	}
	if withoutIPv6(&socketError{"bind", bind, unix.EADDRINUSE}) {
		t.Error("a taken port is taken for a kernel without IPv6")
	}
}

// F30: datagrams carry DF, whatever the path's MTU is believed to be.
func TestF30_DontFragmentIsSet(t *testing.T) {
	for _, bind := range []string{"[::]:0", "127.0.0.1:0"} {
		r := open(t, small(DriverEpoll, netip.MustParseAddrPort(bind)))
		fd := coreOf(r).socket.fd
		if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER); err != nil || v != unix.IP_PMTUDISC_PROBE {
			t.Errorf("%s: IP_MTU_DISCOVER %d, %v", bind, v, err)
		}
		if coreOf(r).family != unix.AF_INET6 {
			continue
		}
		if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG); err != nil || v != 1 {
			t.Errorf("%s: IPV6_DONTFRAG %d, %v", bind, v, err)
		}
	}
}
