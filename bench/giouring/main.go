// Command giouring measures the receiving side of the giouring library in the manner of bench/core: the
// processor time of the reading thread per datagram. Colloid has its own thin layer instead; this is the
// alternative it is measured against (docs/decisions.md). The library reaches into the runtime, so it only
// links with
//
//	go run -ldflags=-checklinkname=0 ./giouring
package main

import (
	"fmt"
	"log"
	"net"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/pawelgaczynski/giouring"
	"golang.org/x/sys/unix"
)

const (
	received     = 200_000
	datagramSize = 200
	buffers      = 1024
	bufferSize   = 2048
	group        = 1
)

func main() {
	log.SetFlags(0)
	values := make([]float64, 3)
	for i := range values {
		values[i] = measure()
	}
	slices.Sort(values)
	fmt.Printf("BENCH giouring_recv_cpu_ns %.3f\n", values[len(values)/2])
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func threadTime() time.Duration {
	var usage unix.Rusage
	must(unix.Getrusage(unix.RUSAGE_THREAD, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func flood(port int, stop *atomic.Bool) {
	conn, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	must(err)
	defer conn.Close()
	payload := make([]byte, datagramSize)
	for !stop.Load() {
		conn.Write(payload)
	}
}

// measure reads datagrams with one multishot receive over a ring of provided buffers, the best the library
// offers.
func measure() float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(err)
	defer unix.Close(fd)
	must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<20))
	must(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := unix.Getsockname(fd)
	must(err)
	ring := giouring.NewRing()
	must(ring.QueueInit(256, giouring.SetupSingleIssuer|giouring.SetupDeferTaskrun))
	defer ring.QueueExit()
	provided, err := ring.SetupBufRing(buffers, group, 0)
	must(err)
	memory, err := unix.Mmap(-1, 0, buffers*bufferSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(err)
	defer unix.Munmap(memory)
	mask := giouring.BufRingMask(buffers)
	give := func(id uint16, offset int) {
		provided.BufRingAdd(uintptr(unsafe.Pointer(&memory[int(id)*bufferSize])), bufferSize, id, mask, offset)
	}
	for id := range uint16(buffers) {
		give(id, int(id))
	}
	provided.BufRingAdvance(buffers)

	var stop atomic.Bool
	defer stop.Store(true)
	go flood(name.(*unix.SockaddrInet4).Port, &stop)
	arm(ring, fd)
	return drain(ring, fd, give, provided)
}

func arm(ring *giouring.Ring, fd int) {
	entry := ring.GetSQE()
	entry.PrepareRecvMultishot(fd, 0, 0, 0)
	entry.Flags |= giouring.SqeBufferSelect
	entry.BufIG = group
}

func drain(ring *giouring.Ring, fd int, give func(uint16, int), provided *giouring.BufAndRing) float64 {
	events := make([]*giouring.CompletionQueueEvent, 256)
	count := 0
	var began time.Duration
	for {
		if _, err := ring.SubmitAndWait(1); err != nil && err != syscall.EINTR {
			must(err)
		}
		n := ring.PeekBatchCQE(events)
		returned, more := 0, true
		for _, event := range events[:n] {
			if event.Res > 0 {
				give(uint16(event.Flags>>giouring.CQEBufferShift), returned)
				returned++
				count++
				switch count {
				case received / 10:
					began = threadTime()
				case received + received/10:
					return float64((threadTime() - began).Nanoseconds()) / received
				}
			}
			more = more && event.Flags&giouring.CQEFMore != 0
		}
		ring.CQAdvance(n)
		if returned > 0 {
			provided.BufRingAdvance(returned)
		}
		if !more {
			arm(ring, fd)
		}
	}
}
