// Package resolver serves name resolution to the containers of this host on sockets that runnerd opened on
// their bridge: package names answers for workloads, other names go to the resolvers of the host.
//
// It is no open resolver: a Server answers only to addresses in the ranges of this host's containers, its
// sockets hear nothing that does not come over the bridge, and each address has a budget.
//
// Limits: ForwardsMax forwarded queries at a time, StreamsMax connections and StreamsPerSource per address,
// QueriesPerSecond per address with a burst of as many again. Beyond them datagrams are dropped and
// connections closed. Nothing is cached.
package resolver

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"colloid.net/meshd/names"
)

// Bounds.
const (
	ForwardsMax      = 128
	StreamsMax       = 64
	StreamsPerSource = 8
	QueriesPerSecond = 200
	sourcesMax       = 2048
	streamIdle       = 5 * time.Second
	forwardPatience  = 2 * time.Second
	upstreamsMax     = 3
)

// Options of a Server.
type Options struct {
	Ranges []netip.Prefix
	// Table gives the present table; it may wait a moment, and is called on several goroutines.
	Table func() *names.Table
	// Upstreams gives the host's resolvers; nil = those of /etc/resolv.conf.
	Upstreams func() []netip.AddrPort
}

// Server answers until it is closed.
type Server struct {
	options  Options
	turn     atomic.Uint32
	forwards chan struct{}

	mutex   sync.Mutex
	closed  bool
	open    map[io.Closer]struct{}
	streams map[netip.Addr]int
	total   int
	budgets map[netip.Addr]*budget
}

// New makes a server without sockets.
func New(options Options) *Server {
	if options.Upstreams == nil {
		options.Upstreams = (&upstreams{path: "/etc/resolv.conf"}).list
	}
	return &Server{options: options, forwards: make(chan struct{}, ForwardsMax), open: map[io.Closer]struct{}{},
		streams: map[netip.Addr]int{}, budgets: map[netip.Addr]*budget{}}
}

// Serve takes a socket of either kind and answers on it. The server owns the file.
func (s *Server) Serve(file *os.File, stream bool) error {
	defer file.Close()
	if stream {
		listener, err := net.FileListener(file)
		if err != nil {
			return err
		}
		if s.keep(listener) {
			go s.accept(listener)
		}
		return nil
	}
	conn, err := net.FilePacketConn(file)
	if err != nil {
		return err
	}
	socket, ok := conn.(*net.UDPConn)
	if !ok {
		conn.Close()
		return os.ErrInvalid
	}
	if s.keep(socket) {
		go s.datagrams(socket)
	}
	return nil
}

// Close ends everything.
func (s *Server) Close() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.closed = true
	for c := range s.open {
		c.Close()
	}
}

func (s *Server) keep(c io.Closer) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.closed {
		c.Close()
		return false
	}
	s.open[c] = struct{}{}
	return true
}

func (s *Server) forgetCloser(c io.Closer) {
	c.Close()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.open, c)
}

// serves reports whether an address may ask.
func (s *Server) serves(a netip.Addr) bool {
	for _, r := range s.options.Ranges {
		if r.Contains(a) {
			return true
		}
	}
	return false
}

// budget is a token bucket.
type budget struct {
	tokens float64
	filled time.Time
}

func (s *Server) spend(a netip.Addr) bool {
	now := time.Now()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	b := s.budgets[a]
	if b == nil {
		if len(s.budgets) >= sourcesMax {
			clear(s.budgets)
		}
		b = &budget{2 * QueriesPerSecond, now}
		s.budgets[a] = b
	}
	b.tokens = min(2*QueriesPerSecond, b.tokens+now.Sub(b.filled).Seconds()*QueriesPerSecond)
	b.filled = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

func (s *Server) datagrams(conn *net.UDPConn) {
	defer s.forgetCloser(conn)
	buffer := make([]byte, names.QuerySizeMax+1)
	response := make([]byte, 0, names.SizeMax)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			if s.isClosed() {
				return
			}
			time.Sleep(10 * time.Millisecond) // an error of one datagram, reported late
			continue
		}
		if a := from.Addr().Unmap(); !s.serves(a) || !s.spend(a) {
			continue
		}
		answer, outcome := names.Respond(s.options.Table(), buffer[:n], false, s.turn.Add(1), response[:0])
		switch outcome {
		case names.Answer:
			_, _ = conn.WriteToUDPAddrPort(answer, from)
		case names.Forward:
			query := append([]byte(nil), buffer[:n]...)
			s.forward(func() {
				if answer := s.ask(query, false); answer != nil {
					_, _ = conn.WriteToUDPAddrPort(answer, from)
				}
			})
		}
	}
}

func (s *Server) isClosed() bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.closed
}

// forward runs a query to the outside, unless too many run: the client asks again.
func (s *Server) forward(call func()) {
	select {
	case s.forwards <- struct{}{}:
		go func() {
			defer func() { <-s.forwards }()
			call()
		}()
	default:
	}
}

func (s *Server) accept(listener net.Listener) {
	defer s.forgetCloser(listener)
	for {
		conn, err := listener.Accept()
		if err != nil {
			if s.isClosed() {
				return
			}
			time.Sleep(10 * time.Millisecond)
			continue
		}
		from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
		a := from.Addr().Unmap()
		if err != nil || !s.serves(a) || !s.enter(a) {
			conn.Close()
			continue
		}
		if s.keep(conn) {
			go func() {
				defer s.leave(a)
				defer s.forgetCloser(conn)
				s.stream(conn, a)
			}()
		} else {
			s.leave(a)
		}
	}
}

func (s *Server) enter(a netip.Addr) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.total >= StreamsMax || s.streams[a] >= StreamsPerSource {
		return false
	}
	s.total++
	s.streams[a]++
	return true
}

func (s *Server) leave(a netip.Addr) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.total--
	if s.streams[a]--; s.streams[a] == 0 {
		delete(s.streams, a)
	}
}

// stream answers the queries of one connection, one after the other.
func (s *Server) stream(conn net.Conn, from netip.Addr) {
	query := make([]byte, names.QuerySizeMax)
	for {
		_ = conn.SetDeadline(time.Now().Add(streamIdle))
		n, err := readFrame(conn, query)
		if err != nil || !s.spend(from) {
			return
		}
		answer, outcome := names.Respond(s.options.Table(), query[:n], true, s.turn.Add(1), nil)
		if outcome == names.Forward {
			select {
			case s.forwards <- struct{}{}:
				_ = conn.SetDeadline(time.Now().Add(upstreamsMax*forwardPatience + time.Second))
				answer = s.ask(query[:n], true)
				<-s.forwards
			default:
				answer, _ = names.Fail(query[:n], dnsmessage.RCodeServerFailure, false, nil)
			}
		}
		if answer == nil || writeFrame(conn, answer) != nil {
			return
		}
	}
}

// readFrame reads a message with its length before it. Longer ones than there is room for are refused.
func readFrame(r io.Reader, into []byte) (int, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return 0, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if n > len(into) {
		return 0, io.ErrShortBuffer
	}
	if _, err := io.ReadFull(r, into[:n]); err != nil {
		return 0, err
	}
	return n, nil
}

func writeFrame(w io.Writer, message []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
	return err
}
