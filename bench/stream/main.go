// Command stream measures streams between two cells and kernel TCP beside them in the same run. It prints one
// line per figure, "BENCH name value", each the median of several runs, and judges nothing.
//
//	stream_loopback_mb_s     one stream between two meshd in this process, over real sockets on loopback
//	stream_loopback_cpu_mb_s the same, by the processor time that both took, as if each had one processor
//	tcp_loopback_mb_s        kernel TCP on loopback
//	stream_50ms_mb_s         one stream, 50 ms round trip, in the simulator
//	stream_50ms_1pct_mb_s    the same with 1 % loss
//	exec_echo_over_rtt_ms    how much later than a round trip a keystroke comes back beside a bulk stream, the same way
//	link_stream_50ms_mb_s    one stream over the emulated link, 50 ms round trip, real sockets
//	link_stream_50ms_1pct_mb_s  the same with 1 % loss
//	tcp_50ms_mb_s, tcp_50ms_1pct_mb_s  kernel TCP CUBIC over the same emulated link, in turn with the streams
//	link_exec_echo_over_rtt_ms  how much later a keystroke comes back over that link beside a bulk stream than without
//
// The emulated link is a pair of TUN devices in two namespaces, joined by a goroutine that holds packets back
// and drops some. It needs root; without it those figures are left out.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"colloid.net/meshd/netem"
)

var (
	runs = flag.Int("runs", 3, "runs per figure; the median is printed")
	only = flag.String("only", "", "measure only: loopback, simulator or link")
	size = flag.Int("size", 512, "MiB per run on loopback")
)

func main() {
	flag.Parse()
	log.SetFlags(0)
	if *only == "" || *only == "loopback" {
		measureLoopback()
	}
	if *only == "" || *only == "simulator" {
		measureSimulator()
	}
	if *only == "" || *only == "link" {
		measureLink()
	}
}

func bench(name string, value float64) { fmt.Printf("BENCH %s %.3f\n", name, value) }

func median(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// processorTime of this process, all threads.
func processorTime() time.Duration {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func measureLoopback() {
	var stream, cpu, tcp []float64
	for range *runs {
		ends, err := netem.Loopback()
		must(err)
		p := newPair(ends)
		before := processorTime()
		stream = append(stream, p.send(*size<<20).Rate())
		cpu = append(cpu, float64(*size<<20)/((processorTime()-before).Seconds()/2)/1e6)
		p.close()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(err)
		tcp = append(tcp, overTCP(listener, func() (net.Conn, error) {
			return net.Dial("tcp", listener.Addr().String())
		}, *size<<20, time.Minute))
	}
	bench("stream_loopback_mb_s", median(stream))
	bench("stream_loopback_cpu_mb_s", median(cpu))
	bench("tcp_loopback_mb_s", median(tcp))
}

// overTCP sends up to total bytes for at most limit and returns MB/s.
func overTCP(listener net.Listener, dial func() (net.Conn, error), total int, limit time.Duration) float64 {
	go func() {
		c, err := dial()
		must(err)
		defer c.Close()
		piece := make([]byte, 64<<10)
		_ = c.SetDeadline(time.Now().Add(limit))
		for left := total; left > 0; left -= len(piece) {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	}()
	c, err := listener.Accept()
	must(err)
	defer listener.Close()
	defer c.Close()
	begin := time.Now()
	_ = c.SetReadDeadline(begin.Add(limit))
	got, err := io.Copy(io.Discard, c)
	if err != nil && !os.IsTimeout(err) {
		log.Print(err)
	}
	return float64(got) / time.Since(begin).Seconds() / 1e6
}
