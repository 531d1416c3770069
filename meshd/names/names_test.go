package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func table() *Table {
	address := netip.MustParseAddr
	many := []Target{}
	for i := range 200 {
		many = append(many, Target{Label: fmt.Sprint(i), Addresses: []netip.Addr{address("10.0.0.1")}, Near: true,
			Ports: []Port{{Service: 80, Number: 80}}})
	}
	return NewTable(map[string][]Target{
		"web": {
			{Label: "0-a", Addresses: []netip.Addr{address("10.64.0.2"), address("fd00::2")}, Near: true,
				Ports: []Port{{Service: 80, Number: 80}, {Service: 53, Number: 53, UDP: true}}},
			{Label: "0-b", Addresses: []netip.Addr{address("192.0.2.7")}, Ports: []Port{{Service: 80, Number: 8080}}},
		},
		"far":  {{Label: "0-b", Addresses: []netip.Addr{address("192.0.2.7")}, Ports: []Port{{Service: 80, Number: 8080}}}},
		"many": many,
	})
}

func ask(t testing.TB, name string, kind dnsmessage.Type, size int) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 77, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	if size > 0 {
		var option dnsmessage.ResourceHeader
		if err := option.SetEDNS0(size, 0, false); err != nil {
			t.Fatal(err)
		}
		m.Additionals = []dnsmessage.Resource{{Header: option, Body: &dnsmessage.OPTResource{}}}
	}
	raw, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func respond(t testing.TB, raw []byte, stream bool) dnsmessage.Message {
	t.Helper()
	response, outcome := Respond(table(), raw, stream, 0, nil)
	if outcome != Answer {
		t.Fatalf("outcome %d", outcome)
	}
	var m dnsmessage.Message
	if err := m.Unpack(response); err != nil {
		t.Fatal(err)
	}
	return m
}

// describe prints the answers shortly.
func describe(m dnsmessage.Message) string {
	var list []string
	for _, answer := range m.Answers {
		switch body := answer.Body.(type) {
		case *dnsmessage.AResource:
			list = append(list, netip.AddrFrom4(body.A).String())
		case *dnsmessage.AAAAResource:
			list = append(list, netip.AddrFrom16(body.AAAA).String())
		case *dnsmessage.SRVResource:
			list = append(list, fmt.Sprintf("%d:%s:%d", body.Priority, body.Target, body.Port))
		}
		if answer.Header.TTL < 1 || answer.Header.TTL > 5 {
			list = append(list, "TTL")
		}
	}
	return fmt.Sprintf("%d %s", m.RCode, strings.Join(list, " "))
}

func TestF158_WorkloadsFindEachOther(t *testing.T) {
	for _, c := range []struct {
		name string
		kind dnsmessage.Type
		want string
	}{
		{"web.colloid.", dnsmessage.TypeA, "0 10.64.0.2"},
		{"WEB.Colloid.", dnsmessage.TypeA, "0 10.64.0.2"},
		{"web.colloid.", dnsmessage.TypeAAAA, "0 fd00::2"},
		{"far.colloid.", dnsmessage.TypeA, "0 192.0.2.7"},
		{"far.colloid.", dnsmessage.TypeAAAA, "0 "},
		{"web.colloid.", dnsmessage.TypeSRV, "0 0:0-a.web.colloid.:80 0:0-a.web.colloid.:53 10:0-b.web.colloid.:8080"},
		{"_80._tcp.web.colloid.", dnsmessage.TypeSRV, "0 0:0-a.web.colloid.:80 10:0-b.web.colloid.:8080"},
		{"_53._udp.web.colloid.", dnsmessage.TypeSRV, "0 0:0-a.web.colloid.:53"},
		{"_53._tcp.web.colloid.", dnsmessage.TypeSRV, "3 "},
		{"_x._tcp.web.colloid.", dnsmessage.TypeSRV, "3 "},
		{"0-b.web.colloid.", dnsmessage.TypeA, "0 192.0.2.7"},
		{"0-c.web.colloid.", dnsmessage.TypeA, "3 "},
		{"none.colloid.", dnsmessage.TypeA, "3 "},
		{"a.b.c.d.colloid.", dnsmessage.TypeA, "3 "},
		{"colloid.", dnsmessage.TypeA, "0 "},
		{"web.colloid.", dnsmessage.TypeMX, "0 "},
		{"web.colloid.", dnsmessage.TypeALL, "5 "},
		{"web.colloid.", dnsmessage.TypeAXFR, "5 "},
	} {
		m := respond(t, ask(t, c.name, c.kind, 0), false)
		if got := describe(m); got != c.want {
			t.Errorf("%s %v: %s, want %s", c.name, c.kind, got, c.want)
		}
		if !m.Response || m.ID != 77 || len(m.Questions) != 1 || m.Questions[0].Name.String() != c.name {
			t.Errorf("%s: %v", c.name, m.GoString())
		}
		if m.RCode != dnsmessage.RCodeRefused && len(m.Answers) == 0 && len(m.Authorities) != 1 {
			t.Errorf("%s: an absence without a SOA", c.name)
		}
	}
}

func TestOtherNamesAreForwarded(t *testing.T) {
	for _, name := range []string{"example.com.", "colloid.example.com.", "xcolloid.", "."} {
		if _, outcome := Respond(table(), ask(t, name, dnsmessage.TypeA, 0), false, 0, nil); outcome != Forward {
			t.Errorf("%s: %d", name, outcome)
		}
	}
}

func TestAnswersFitTheClient(t *testing.T) {
	for size, limit := range map[int]int{0: SizePlain, 100: SizePlain, 900: 900, 60000: SizeMax} {
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeSRV} {
			raw := ask(t, "many.colloid.", kind, size)
			response, _ := Respond(table(), raw, false, 0, nil)
			m := respond(t, raw, false)
			if len(response) > limit || !m.Truncated && len(m.Answers) != AnswersMax || m.Truncated && len(m.Answers) > 0 {
				t.Errorf("size %d: %d bytes, truncated %v, %d answers", size, len(response), m.Truncated, len(m.Answers))
			}
			if m := respond(t, raw, true); m.Truncated || len(m.Answers) != AnswersMax {
				t.Errorf("over TCP: %d answers", len(m.Answers))
			}
			edns := slices.ContainsFunc(m.Additionals, func(r dnsmessage.Resource) bool { return r.Header.Type == dnsmessage.TypeOPT })
			if edns != (size > 0) {
				t.Errorf("size %d: EDNS %v", size, edns)
			}
		}
	}
}

func TestMalformedQueries(t *testing.T) {
	good := ask(t, "web.colloid.", dnsmessage.TypeA, 0)
	response := slices.Clone(good)
	response[2] |= 0x80
	for name, raw := range map[string][]byte{"empty": nil, "short": good[:11], "response": response, "long": make([]byte, QuerySizeMax+1)} {
		if _, outcome := Respond(table(), raw, false, 0, nil); outcome != Drop {
			t.Errorf("%s: %d", name, outcome)
		}
	}
	opcode, two, class := slices.Clone(good), slices.Clone(good), slices.Clone(good)
	opcode[2], two[5], class[len(class)-1] = 0x20, 2, 3
	for code, raw := range map[dnsmessage.RCode][]byte{
		dnsmessage.RCodeNotImplemented: opcode, dnsmessage.RCodeFormatError: two, dnsmessage.RCodeRefused: class,
	} {
		if m := respond(t, raw, false); m.RCode != code || len(m.Answers) > 0 {
			t.Errorf("%v, want %v", m.RCode, code)
		}
	}
}

func FuzzDNS(f *testing.F) {
	f.Add(ask(f, "web.colloid.", dnsmessage.TypeA, 0), uint32(0))
	f.Add(ask(f, "_80._tcp.web.colloid.", dnsmessage.TypeSRV, 1232), uint32(1))
	f.Add(ask(f, "many.colloid.", dnsmessage.TypeSRV, 512), uint32(7))
	f.Add(ask(f, "example.com.", dnsmessage.TypeAAAA, 0), uint32(0))
	f.Fuzz(func(t *testing.T, raw []byte, turn uint32) {
		for _, stream := range []bool{false, true} {
			response, outcome := Respond(table(), raw, stream, turn, nil)
			if outcome != Answer {
				continue
			}
			var m dnsmessage.Message
			if err := m.Unpack(response); err != nil {
				t.Fatalf("the response does not parse: %v", err)
			}
			if !stream && len(response) > Size(raw) || m.ID != uint16(raw[0])<<8|uint16(raw[1]) || !m.Response {
				t.Fatalf("%d bytes, %v", len(response), m.Header)
			}
		}
		Matches(raw, raw)
		Fail(raw, dnsmessage.RCodeServerFailure, false, nil)
	})
}
