package resolver

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"colloid.net/meshd/names"
)

// ask gives the answer of the host's resolvers, one after the other until one answers, or a failure.
func (s *Server) ask(query []byte, stream bool) []byte {
	for _, upstream := range s.options.Upstreams() {
		if s.serves(upstream.Addr()) {
			continue // that would be this resolver
		}
		response := exchange(upstream, query, stream)
		if response == nil {
			continue
		}
		if !stream && len(response) > names.Size(query) {
			short, _ := names.Fail(query, dnsmessage.RCodeSuccess, true, nil)
			return short
		}
		return response
	}
	failure, _ := names.Fail(query, dnsmessage.RCodeServerFailure, false, nil)
	return failure
}

// exchange sends a query on and waits for what belongs to it. Each has a socket of its own, with a port that
// nobody can guess, connected so that nobody else can answer; the query goes on as it came, but for the
// number, which the client chose and a neighbour may have seen.
func exchange(upstream netip.AddrPort, query []byte, stream bool) []byte {
	network := "udp"
	if stream {
		network = "tcp"
	}
	conn, err := net.DialTimeout(network, upstream.String(), forwardPatience)
	if err != nil {
		return nil
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(forwardPatience))
	own := bytes.Clone(query)
	number := newNumber()
	own[0], own[1] = byte(number>>8), byte(number)
	buffer := make([]byte, 1<<16)
	if stream {
		if writeFrame(conn, own) != nil {
			return nil
		}
		n, err := readFrame(conn, buffer[:1<<16-1])
		if err != nil || !names.Matches(own, buffer[:n]) {
			return nil
		}
		return renumbered(buffer[:n], query)
	}
	if _, err := conn.Write(own); err != nil {
		return nil
	}
	for {
		n, err := conn.Read(buffer[:datagramMax])
		if err != nil {
			return nil
		}
		if names.Matches(own, buffer[:n]) {
			return renumbered(buffer[:n], query)
		}
	}
}

// datagramMax bounds what is taken from a resolver of the host over UDP: more than any client is given.
const datagramMax = 4096

func renumbered(response, query []byte) []byte {
	list := bytes.Clone(response)
	copy(list[:2], query[:2])
	return list
}

// upstreams reads the file of the host's resolvers when it has changed.
type upstreams struct {
	path  string
	mutex sync.Mutex
	read  time.Time
	now   []netip.AddrPort
}

// upstreamsKept is how long the file is believed.
const upstreamsKept = 2 * time.Second

func (u *upstreams) list() []netip.AddrPort {
	u.mutex.Lock()
	defer u.mutex.Unlock()
	if time.Since(u.read) < upstreamsKept {
		return u.now
	}
	u.read = time.Now()
	file, err := os.Open(u.path)
	if err != nil {
		return u.now
	}
	defer file.Close()
	u.now = parseUpstreams(file)
	return u.now
}

func parseUpstreams(file io.Reader) (list []netip.AddrPort) {
	for lines := bufio.NewScanner(file); lines.Scan() && len(list) < upstreamsMax; {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(words[1]); err == nil {
			list = append(list, netip.AddrPortFrom(a, 53))
		}
	}
	return list
}
