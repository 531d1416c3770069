package reactor

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
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

// inChild runs the test of this name in a process of its own, where child is called first. A seccomp
// filter cannot be taken off again.
func inChild(t *testing.T, child func() error, test func(t *testing.T)) {
	if os.Getenv(seccompChild) == t.Name() {
		if err := child(); err != nil {
			t.Skipf("seccomp: %v", err)
		}
		test(t)
		return
	}
	command := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), seccompChild+"="+t.Name())
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if strings.Contains(string(output), "SKIP") {
		t.Skipf("%s", output)
	}
}

// F125: the way containers forbid io_uring, by a seccomp filter.
func TestF125_SeccompDeniesURing(t *testing.T) {
	inChild(t, denyURing, func(t *testing.T) {
		r := open(t, small(DriverAuto, loopback4))
		if want := "epoll (io_uring refused: operation not permitted)"; r.Driver() != want {
			t.Errorf("driver %q, want %q", r.Driver(), want)
		}
		run(t, r, echo(r))
		roundTrip(t, dial(t, r.LocalAddress()), "ping")
		if _, err := Open(small(DriverURing, loopback4)); !errors.Is(err, unix.EPERM) {
			t.Errorf("io_uring: %v", err)
		}
	})
}

// F34: a kernel without IPv6, as ipv6.disable=1 makes it, gets an IPv4 socket.
func TestF34_KernelWithoutIPv6(t *testing.T) {
	inChild(t, denyIPv6, func(t *testing.T) {
		for _, driver := range []string{DriverURing, DriverEpoll} {
			r := open(t, small(driver, netip.AddrPort{}))
			if r.LocalAddress().Addr() != netip.IPv4Unspecified() {
				t.Errorf("bound to %v", r.LocalAddress())
			}
			run(t, r, echo(r))
			port := r.LocalAddress().Port()
			roundTrip(t, dial(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.5"), port)), "ping")
		}
	})
}

func denyURing() error {
	return install([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_IO_URING_SETUP, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	})
}

func denyIPv6() error {
	return install([]unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SOCKET, Jt: 0, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 16}, // the first argument
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.AF_INET6, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	})
}

// install puts a filter on all threads of the process.
func install(filter []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}

// F30: datagrams carry DF, whatever the path's MTU is believed to be.
func TestF30_DontFragmentIsSet(t *testing.T) {
	for _, bind := range []string{"[::]:0", "127.0.0.1:0"} {
		r := open(t, small(DriverEpoll, netip.MustParseAddrPort(bind)))
		fd := coreOf(r).socket.fd
		v, err := unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER)
		if err != nil || v != unix.IP_PMTUDISC_PROBE {
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

// F30: on a link that cannot carry 1200 bytes the sender hears of it, with the address, instead of
// losing datagrams in silence; small ones still go.
func TestF30_NarrowPathIsReported(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make a network namespace")
	}
	onBothDrivers(t, func(t *testing.T, driver string) {
		for _, bind := range []string{"127.0.0.1:0", "[::]:0"} {
			var r Reactor
			inNarrowNamespace(t, func() { r = open(t, small(driver, netip.MustParseAddrPort(bind))) })
			if r == nil {
				t.Skip("no reactor in the namespace")
			}
			to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), r.LocalAddress().Port())
			failed := make(chan unix.Errno, 1)
			got := make(chan int, 1)
			run(t, r, &script{
				wake: func() {
					r.Send(to, make([]byte, 1200))
					r.Send(to, make([]byte, 1000))
				},
				failed: func(path netip.AddrPort, reason unix.Errno) {
					if path == to {
						failed <- reason
					}
				},
				datagram: func(_ netip.AddrPort, _ netip.Addr, d []byte) { got <- len(d) },
			})
			r.Wake()
			if reason := <-failed; reason != unix.EMSGSIZE {
				t.Errorf("%s: %v", bind, reason)
			}
			if size := <-got; size != 1000 {
				t.Errorf("%s: %d bytes arrived", bind, size)
			}
			if c := r.Counters(); c.SendTooLong != 1 {
				t.Errorf("%s: %+v", bind, c)
			}
		}
	})
}

// inNarrowNamespace calls f in a network namespace whose only link has an MTU of 1100. The thread is
// not used for anything else afterwards.
func inNarrowNamespace(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		defer close(done) // f may skip the test, which ends this goroutine
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = narrowLoopback()
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("network namespace: %v", err)
	}
}

func narrowLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return err
	}
	request.SetUint32(1100)
	return unix.IoctlIfreq(fd, unix.SIOCSIFMTU, request)
}

// Datagrams that go the same way travel in runs, and arrive one by one as they were sent: long and short
// ones, to two destinations, more than one run takes (F129).
func TestF129_RunsArriveAsDatagrams(t *testing.T) {
	onBothDrivers(t, func(t *testing.T, driver string) {
		bind := netip.MustParseAddrPort("127.0.0.1:0")
		options := small(driver, bind)
		options.SendQueue, options.QueueEntries, options.ReceiveBuffers = 512, 1024, 1024
		r, other := open(t, options), open(t, options)
		var want []int
		for i := range 150 {
			want = append(want, 1200-200*(i/70))
			if i%40 == 39 {
				want = append(want, 700+i)
			}
		}
		got := make(chan []byte, 2*len(want))
		take := func(_ netip.AddrPort, _ netip.Addr, d []byte) { got <- bytes.Clone(d) }
		run(t, other, &script{datagram: take})
		run(t, r, &script{datagram: take, wake: func() {
			for i, size := range want {
				d := bytes.Repeat([]byte{byte(i)}, size)
				if r.Send(other.LocalAddress(), d); i%50 == 0 {
					r.Send(r.LocalAddress(), d)
				}
			}
		}})
		r.Wake()
		counts := map[int]int{}
		for range len(want) + (len(want)+49)/50 {
			select {
			case d := <-got:
				i := int(d[0])
				counts[i]++
				if len(d) != want[i] || !bytes.Equal(d, bytes.Repeat(d[:1], len(d))) {
					t.Fatalf("datagram %d has %d bytes, was sent with %d", i, len(d), want[i])
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%d different ones arrived of %d: %+v", len(counts), len(want), r.Counters())
			}
		}
		for i := range want {
			if n := counts[i]; n != 1 && !(n == 2 && i%50 == 0) {
				t.Errorf("datagram %d came %d times", i, n)
			}
		}
	})
}
