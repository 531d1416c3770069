// Package names answers DNS queries of containers for the names of workloads, <workload>.colloid, from
// what the cell knows (F158). It is a function of a query and a table; sockets are package resolver's.
//
// Nouns. A Target is one ready instance as a container on this host reaches it: near ones by their own
// addresses, those of other cells by the cell's address and the ports that are published there. A Table
// holds the targets of all workloads; it is built at once and never changed.
//
// Answers: A and AAAA have the near targets, or without any those of other cells. SRV has all of them, near
// ones first, with the port to connect to; _<port>._tcp.<workload>.colloid asks for one port of the
// container alone. Everything else below colloid does not exist. Nothing may be kept longer than TTL.
//
// Limits: queries of QuerySizeMax bytes with one question, AnswersMax records per answer.
package names

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Bounds.
const (
	QuerySizeMax = 1024
	AnswersMax   = 64
	TTL          = 2 // seconds
	// SizeMax is the largest datagram, which passes every path; SizePlain that without EDNS.
	SizeMax   = 1232
	SizePlain = 512
)

// Zone is below which the names of workloads are.
const Zone = "colloid."

// Target is one ready instance.
type Target struct {
	Label     string // of the instance, unique in its workload
	Addresses []netip.Addr
	Ports     []Port
	Near      bool // on this host
}

// Port is where a target takes connections for a port of its container.
type Port struct {
	Service, Number uint16
	UDP             bool
}

// Table holds the targets by the name of the workload.
type Table struct{ workloads map[string][]Target }

// NewTable makes a table; it owns the map from now on. Lists are kept in their order.
func NewTable(workloads map[string][]Target) *Table { return &Table{workloads} }

// Outcome says what to do with a query.
type Outcome uint8

// Outcomes of Respond.
const (
	Drop    Outcome = iota // it is no query: say nothing
	Answer                 // send the response
	Forward                // it is about names that others know
)

// query is a parsed one.
type query struct {
	header   dnsmessage.Header
	question dnsmessage.Question
	edns     bool
	size     int // of the largest datagram that the client takes
}

// Respond answers a query. stream says that it came over TCP, which has no limit on the size; turn rotates
// the addresses. The response is appended to buffer.
func Respond(t *Table, raw []byte, stream bool, turn uint32, buffer []byte) ([]byte, Outcome) {
	q, failure, ok := parse(raw)
	if !ok {
		return nil, Drop
	}
	if failure != dnsmessage.RCodeSuccess {
		return q.reply(buffer, failure, nil, nil, stream), Answer
	}
	name := strings.ToLower(q.question.Name.String())
	if name != Zone && !strings.HasSuffix(name, "."+Zone) {
		return nil, Forward
	}
	switch q.question.Type {
	case dnsmessage.TypeALL, dnsmessage.TypeAXFR, 251: // IXFR; ANY is for amplifiers
		return q.reply(buffer, dnsmessage.RCodeRefused, nil, nil, stream), Answer
	}
	answers, extra, found := t.answers(strings.TrimSuffix(strings.TrimSuffix(name, Zone), "."), q.question, turn)
	code := dnsmessage.RCodeSuccess
	if !found {
		code = dnsmessage.RCodeNameError
	}
	return q.reply(buffer, code, answers, extra, stream), Answer
}

// Fail makes a response without an answer: for what could not be forwarded, and what was too long.
func Fail(raw []byte, code dnsmessage.RCode, truncated bool, buffer []byte) ([]byte, bool) {
	q, failure, ok := parse(raw)
	if !ok || failure != dnsmessage.RCodeSuccess {
		return nil, false
	}
	q.header.Truncated = truncated
	return q.reply(buffer, code, nil, nil, true), true
}

// Size is how long a datagram may be that answers a query.
func Size(raw []byte) int {
	q, _, _ := parse(raw)
	return max(q.size, SizePlain)
}

// Matches reports whether a response belongs to a query.
func Matches(raw, response []byte) bool {
	q, failure, ok := parse(raw)
	var p dnsmessage.Parser
	header, err := p.Start(response)
	if !ok || failure != dnsmessage.RCodeSuccess || err != nil || !header.Response || header.ID != q.header.ID {
		return false
	}
	question, err := p.Question()
	return err == nil && question.Type == q.question.Type && question.Class == q.question.Class &&
		strings.EqualFold(question.Name.String(), q.question.Name.String())
}

// parse takes a query apart. Without ok there is nothing to answer to, with a failure nothing to look up.
func parse(raw []byte) (q query, failure dnsmessage.RCode, ok bool) {
	if len(raw) > QuerySizeMax {
		return q, 0, false
	}
	var p dnsmessage.Parser
	var err error
	if q.header, err = p.Start(raw); err != nil || q.header.Response {
		return q, 0, false
	}
	q.size = SizePlain
	if q.header.OpCode != 0 {
		return q, dnsmessage.RCodeNotImplemented, true
	}
	if q.question, err = p.Question(); err != nil {
		return q, dnsmessage.RCodeFormatError, true
	}
	if _, err := p.Question(); err != dnsmessage.ErrSectionDone {
		return q, dnsmessage.RCodeFormatError, true
	}
	if q.question.Class != dnsmessage.ClassINET {
		return q, dnsmessage.RCodeRefused, true
	}
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return q, dnsmessage.RCodeFormatError, true
	}
	for {
		resource, err := p.AdditionalHeader()
		if err == dnsmessage.ErrSectionDone {
			return q, dnsmessage.RCodeSuccess, true
		}
		if err != nil || p.SkipAdditional() != nil {
			return q, dnsmessage.RCodeFormatError, true
		}
		if resource.Type == dnsmessage.TypeOPT {
			q.edns, q.size = true, min(max(int(resource.Class), SizePlain), SizeMax)
		}
	}
}

// answers finds what a name below the zone stands for; found is false for one that does not exist.
func (t *Table) answers(name string, question dnsmessage.Question, turn uint32) (answers, extra []dnsmessage.Resource,
	found bool) {
	if name == "" {
		return nil, nil, true // the zone itself has no records
	}
	labels := strings.Split(name, ".")
	targets := t.workloads[labels[len(labels)-1]]
	if len(targets) == 0 {
		return nil, nil, false
	}
	switch len(labels) {
	case 1:
		if question.Type == dnsmessage.TypeSRV {
			answers, extra = services(targets, question.Name, name, nil)
			return answers, extra, true
		}
		return addresses(preferred(targets), question, turn), nil, true
	case 2:
		for _, target := range targets {
			if target.Label == labels[0] {
				return addresses([]Target{target}, question, 0), nil, true
			}
		}
	case 3:
		wanted, ok := parseService(labels[0], labels[1])
		if !ok {
			return nil, nil, false
		}
		answers, extra = services(targets, question.Name, labels[2], &wanted)
		if question.Type != dnsmessage.TypeSRV {
			return nil, nil, len(answers) > 0
		}
		return answers, extra, len(answers) > 0
	}
	return nil, nil, false
}

// parseService reads "_80" and "_tcp".
func parseService(port, protocol string) (Port, bool) {
	number, err := strconv.ParseUint(strings.TrimPrefix(port, "_"), 10, 16)
	ok := err == nil && strings.HasPrefix(port, "_") && (protocol == "_tcp" || protocol == "_udp")
	return Port{Service: uint16(number), UDP: protocol == "_udp"}, ok
}

// preferred are the near targets, or all if there are none: those of other cells answer at other ports.
func preferred(targets []Target) []Target {
	near := slices.DeleteFunc(slices.Clone(targets), func(t Target) bool { return !t.Near })
	if len(near) > 0 {
		return near
	}
	return targets
}

func addresses(targets []Target, question dnsmessage.Question, turn uint32) []dnsmessage.Resource {
	var list []dnsmessage.Resource
	for i := range targets {
		target := targets[(i+int(turn%uint32(len(targets))))%len(targets)]
		for _, a := range target.Addresses {
			body := bodyOf(a)
			if len(list) < AnswersMax && typeOf(a) == question.Type {
				list = append(list, dnsmessage.Resource{Header: header(question.Name, typeOf(a)), Body: body})
			}
		}
	}
	return list
}

func header(name dnsmessage.Name, kind dnsmessage.Type) dnsmessage.ResourceHeader {
	return dnsmessage.ResourceHeader{Name: name, Type: kind, Class: dnsmessage.ClassINET, TTL: TTL}
}

func typeOf(a netip.Addr) dnsmessage.Type {
	if a.Is4() {
		return dnsmessage.TypeA
	}
	return dnsmessage.TypeAAAA
}

func bodyOf(a netip.Addr) dnsmessage.ResourceBody {
	if a.Is4() {
		return &dnsmessage.AResource{A: a.As4()}
	}
	return &dnsmessage.AAAAResource{AAAA: a.As16()}
}

// services lists where connections are taken, with the addresses beside them.
func services(targets []Target, name dnsmessage.Name, workload string, wanted *Port) (answers, extra []dnsmessage.Resource) {
	for _, target := range targets {
		priority := uint16(10)
		if target.Near {
			priority = 0
		}
		label, err := dnsmessage.NewName(target.Label + "." + workload + "." + Zone)
		if err != nil {
			continue
		}
		used := false
		for _, port := range target.Ports {
			if wanted != nil && (port.Service != wanted.Service || port.UDP != wanted.UDP) || len(answers) >= AnswersMax {
				continue
			}
			used = true
			answers = append(answers, dnsmessage.Resource{Header: header(name, dnsmessage.TypeSRV),
				Body: &dnsmessage.SRVResource{Priority: priority, Weight: 1, Port: port.Number, Target: label}})
		}
		for _, a := range target.Addresses {
			if used && len(extra) < AnswersMax {
				extra = append(extra, dnsmessage.Resource{Header: header(label, typeOf(a)), Body: bodyOf(a)})
			}
		}
	}
	return answers, extra
}

// reply builds a response. What does not fit loses its additional records, and then its answers: the
// client comes back over TCP.
func (q *query) reply(buffer []byte, code dnsmessage.RCode, answers, extra []dnsmessage.Resource, stream bool) []byte {
	limit := q.size
	if stream {
		limit = 1<<16 - 1
	}
	truncated := q.header.Truncated
	for {
		response := q.build(buffer, code, answers, extra, truncated)
		switch {
		case len(response)-len(buffer) <= limit:
			return response
		case len(extra) > 0:
			extra = nil
		default:
			answers, truncated = nil, true
		}
	}
}

func (q *query) build(buffer []byte, code dnsmessage.RCode, answers, extra []dnsmessage.Resource, truncated bool) []byte {
	message := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: q.header.ID, Response: true, OpCode: q.header.OpCode, RecursionDesired: q.header.RecursionDesired,
			RecursionAvailable: true, RCode: code, Truncated: truncated, Authoritative: len(answers) > 0,
		},
		Answers: answers, Additionals: extra,
	}
	if q.question.Name.Length > 0 {
		message.Questions = []dnsmessage.Question{q.question}
	}
	if len(answers) == 0 && !truncated && q.inZone() {
		// Without it a resolver would keep the absence as long as it likes (RFC 2308).
		zone := dnsmessage.MustNewName(Zone)
		message.Authoritative = true
		message.Authorities = []dnsmessage.Resource{{Header: header(zone, dnsmessage.TypeSOA), Body: &dnsmessage.SOAResource{
			NS: zone, MBox: zone, Serial: 1, Refresh: 60, Retry: 60, Expire: 60, MinTTL: TTL,
		}}}
	}
	if q.edns {
		var option dnsmessage.ResourceHeader
		_ = option.SetEDNS0(SizeMax, code, false) // fails for no size and code that there is
		message.Additionals = append(slices.Clone(message.Additionals),
			dnsmessage.Resource{Header: option, Body: &dnsmessage.OPTResource{}})
	}
	response, err := message.AppendPack(buffer)
	if err != nil {
		panic("names: a response that cannot be packed: " + err.Error())
	}
	return response
}

func (q *query) inZone() bool {
	name := strings.ToLower(q.question.Name.String())
	return name == Zone || strings.HasSuffix(name, "."+Zone)
}
