package join

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"colloid.net/meshd/clock"
	"colloid.net/meshd/seal"
	"colloid.net/meshd/wire"
)

// chacha is a deterministic stand-in for the system's random source.
func chacha(seed byte) io.Reader { return rand.NewChaCha8([32]byte{seed}) }

var (
	cluster = seal.Key{1, 2, 3}
	hello   = Hello{Self: 0x0a00000000000001, SecretHash: 42}
	source  = netip.MustParseAddrPort("192.0.2.1:40000")
	members = []wire.Contact{
		{ID: 0x0b00000000000002, Address: netip.MustParseAddrPort("192.0.2.2:12421"), Reach: wire.ReachPublic,
			Flags: 3},
		{ID: 0x0c00000000000003, Address: netip.MustParseAddrPort("[2001:db8::3]:12421")},
	}
	accepted = Welcome{Key: cluster, Members: members}
)

func doorKey(k seal.Key) *seal.Key { d := DoorKey(k); return &d }

// answer lets a fresh seed answer and returns a copy of the reply.
func answer(t testing.TB, request []byte, door Door, w Welcome) ([]byte, bool) {
	t.Helper()
	reply, ok := NewSeed(chacha(9), Limits{}).Answer(1, source, request, door, func(h Hello) (Welcome, bool) {
		if h != hello {
			t.Fatalf("hello %+v arrived as %+v", hello, h)
		}
		return w, true
	})
	if len(reply) > len(request) || ok != (reply != nil) {
		t.Fatalf("reply of %d bytes to a request of %d, ok %t", len(reply), len(request), ok)
	}
	return bytes.Clone(reply), ok
}

func TestD1_JoinThroughEveryDoor(t *testing.T) {
	for _, test := range []struct {
		name    string
		locked  bool
		psk     *seal.Key
		refused string
	}{
		{"open door, no key", false, nil, ""},
		{"open door, key", false, doorKey(cluster), ""},
		{"locked, key", true, doorKey(cluster), ""},
		{"locked, no key", true, nil, RefusedLocked},
		{"locked, wrong key", true, doorKey(seal.Key{9}), RefusedKey},
		{"open door, wrong key", false, doorKey(seal.Key{9}), RefusedKey},
		{"locked, cluster key itself", true, &cluster, RefusedKey},
	} {
		joiner := NewJoiner(chacha(1), hello, test.psk)
		if len(joiner.Request()) != RequestSize || RequestSize != wire.PayloadMax {
			t.Fatalf("%s: request of %d bytes", test.name, len(joiner.Request()))
		}
		reply, ok := answer(t, joiner.Request(), Door{Locked: test.locked, Key: cluster}, accepted)
		if !ok {
			t.Fatalf("%s: no reply", test.name)
		}
		if bytes.Contains(reply, cluster[:16]) {
			t.Fatalf("%s: the cluster key is readable", test.name)
		}
		got, err := joiner.Finish(reply)
		want := accepted
		if test.refused != "" {
			want = Welcome{Refused: test.refused, Unproven: true}
			if len(reply) != replyHeadSize+1 {
				t.Errorf("%s: refusal of %d bytes says more than its reason", test.name, len(reply))
			}
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", test.name, got, err)
		}
		_, err = joiner.Finish(reply)
		if over := test.refused == ""; over != errors.Is(err, ErrFinished) {
			t.Errorf("%s: after it, the same reply again: %v", test.name, err)
		}
	}
}

func TestF3_CollisionAndRefusalComeProven(t *testing.T) {
	for _, w := range []Welcome{{Collision: true}, {Refused: "this cell is degraded"}} {
		for _, psk := range []*seal.Key{nil, doorKey(cluster)} {
			joiner := NewJoiner(chacha(1), hello, psk)
			// The seed's callback may say more; none of it travels.
			said := w
			said.Key, said.Members = cluster, members
			reply, _ := answer(t, joiner.Request(), Door{Locked: false, Key: cluster}, said)
			if got, err := joiner.Finish(reply); err != nil || !reflect.DeepEqual(got, w) {
				t.Errorf("%+v arrived as %+v, %v", w, got, err)
			}
		}
	}
}

func TestD1_RepliesOfOtherHandshakesAreIgnored(t *testing.T) {
	first, second := NewJoiner(chacha(1), hello, nil), NewJoiner(chacha(2), hello, nil)
	reply, _ := answer(t, first.Request(), Door{Locked: false, Key: cluster}, accepted)
	if _, err := second.Finish(reply); err != ErrUnrelated {
		t.Fatalf("reply to another attempt: %v", err)
	}
	forged := bytes.Clone(reply) // echo right, handshake of the other attempt
	copy(forged[2:], second.Request()[requestHeadSize:requestHeadSize+echoSize])
	if _, err := second.Finish(forged); err != ErrUnrelated {
		t.Fatalf("reply to another attempt with the right echo: %v", err)
	}
	low := bytes.Clone(forged) // an ephemeral key of low order
	clear(low[replyHeadSize : replyHeadSize+dhSize])
	if _, err := second.Finish(low); err != ErrUnrelated {
		t.Fatalf("low order: %v", err)
	}
	// Several seeds answer, the first real one counts, nothing before it spoiled it.
	good, _ := answer(t, second.Request(), Door{Locked: false, Key: cluster}, accepted)
	for _, bad := range [][]byte{nil, good[:replyHeadSize-1], good[:len(good)-1], append(bytes.Clone(good), 0)} {
		if _, err := second.Finish(bad); err == nil {
			t.Fatalf("damaged reply of %d bytes accepted", len(bad))
		}
	}
	refusal := append(bytes.Clone(good[:replyHeadSize]), reasonLocked)
	refusal[1] = kindRefused
	if got, err := second.Finish(refusal); err != nil || got.Refused != RefusedLocked || !got.Unproven {
		t.Fatalf("refusal: %+v, %v", got, err)
	}
	if got, err := second.Finish(good); err != nil || got.Key != cluster {
		t.Fatalf("real reply after bad ones: %+v, %v", got, err)
	}
}

func TestD1_AnyFlippedBitOfTheHandshakeFails(t *testing.T) {
	for _, psk := range []*seal.Key{nil, doorKey(cluster)} {
		joiner := NewJoiner(chacha(1), hello, psk)
		reply, _ := answer(t, joiner.Request(), Door{Locked: false, Key: cluster}, accepted)
		for bit := range len(reply) * 8 {
			changed := bytes.Clone(reply)
			changed[bit/8] ^= 1 << (bit % 8)
			joiner.replies = 0
			// The top bit of an X25519 key means nothing, but it is hashed into the handshake.
			if got, err := joiner.Finish(changed); err == nil && (got.Refused == "" || !got.Unproven) {
				t.Fatalf("reply, byte %d bit %d: %+v", bit/8, bit%8, got)
			}
		}
		// A request changed on its way gives no welcome that the joiner would take.
		request := joiner.Request()
		for bit := 0; bit < len(request)*8; bit += 61 {
			changed := bytes.Clone(request)
			changed[bit/8] ^= 1 << (bit % 8)
			reply, ok := NewSeed(chacha(9), Limits{}).Answer(1, source, changed, Door{Locked: false, Key: cluster},
				func(Hello) (Welcome, bool) { return accepted, true })
			if !ok {
				continue
			}
			joiner.replies = 0
			if got, err := joiner.Finish(reply); err == nil && !got.Unproven {
				t.Fatalf("request, byte %d bit %d: %+v", bit/8, bit%8, got)
			}
		}
	}
}

func TestJoinerWorksOnABoundedNumberOfReplies(t *testing.T) {
	joiner := NewJoiner(chacha(1), hello, nil)
	good, _ := answer(t, joiner.Request(), Door{Locked: false, Key: cluster}, accepted)
	bad := bytes.Clone(good)
	bad[len(bad)-1] ^= 1
	unrelated := bytes.Clone(good)
	unrelated[2] ^= 1
	for range repliesMax {
		if _, err := joiner.Finish(bad); err != ErrUnrelated {
			t.Fatal(err)
		}
		if _, err := joiner.Finish(unrelated); err != ErrUnrelated {
			t.Fatal(err)
		}
	}
	if _, err := joiner.Finish(good); err != ErrFinished {
		t.Fatalf("reply %d: %v", repliesMax+1, err)
	}
}

func TestD1_SeedIgnoresWhatIsNotARequest(t *testing.T) {
	request := NewJoiner(chacha(1), hello, nil).Request()
	never := func(Hello) (Welcome, bool) { t.Fatal("welcome asked for"); return Welcome{}, false }
	change := func(at int, b byte) []byte {
		changed := bytes.Clone(request)
		changed[at] = b
		return changed
	}
	helloAt := requestHeadSize + dhSize
	noCell := bytes.Clone(request)
	clear(noCell[helloAt : helloAt+8])
	lowOrder := bytes.Clone(request)
	clear(lowOrder[requestHeadSize:helloAt])
	for name, payload := range map[string][]byte{
		"empty":                  nil,
		"short":                  request[:RequestSize-1],
		"long":                   append(bytes.Clone(request), 0),
		"mode 0":                 change(1, 0),
		"mode 3":                 change(1, 3),
		"padding not zero":       change(RequestSize-1, 1),
		"hello of reserved cell": noCell,
	} {
		if reply, ok := NewSeed(chacha(9), Limits{}).Answer(1, source, payload, Door{Locked: false, Key: cluster}, never); ok {
			t.Errorf("%s: answered with %x", name, reply)
		}
	}
	seed := NewSeed(chacha(9), Limits{})
	if _, ok := seed.Answer(1, source, lowOrder, Door{Locked: false, Key: cluster},
		func(Hello) (Welcome, bool) { return accepted, true }); ok {
		t.Error("answered a key of low order")
	}
	if _, ok := seed.Answer(1, source, request, Door{}, never); ok {
		t.Error("answered without a cluster")
	}
	if _, ok := seed.Answer(1, netip.AddrPort{}, request, Door{Locked: false, Key: cluster}, never); ok {
		t.Error("answered nobody")
	}
}

func TestF26_OtherVersionsAreToldSo(t *testing.T) {
	joiner := NewJoiner(chacha(1), hello, nil)
	newer := bytes.Clone(joiner.Request())
	newer[0] = 2
	reply, ok := answer(t, newer, Door{Locked: true, Key: cluster}, Welcome{})
	if !ok {
		t.Fatal("no reply")
	}
	if got, err := joiner.Finish(reply); err != nil || got.Refused != RefusedVersion {
		t.Fatalf("%+v, %v", got, err)
	}
	if reply, ok = answer(t, joiner.Request(), Door{Key: cluster, Outdated: true}, Welcome{}); !ok {
		t.Fatal("no reply to a joiner without a protocol version in common")
	}
	if got, err := joiner.Finish(reply); err != nil || got.Refused != RefusedVersion {
		t.Fatalf("%+v, %v", got, err)
	}
	reply[0], reply[len(reply)-1] = 9, 99 // a newer seed with a reason of its own
	if got, err := joiner.Finish(reply); err != nil || got.Refused != refusalUnknown || !got.Unproven {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestF22_WelcomeMembers(t *testing.T) {
	var many []wire.Contact
	for i := range 100 {
		many = append(many, wire.Contact{ID: wire.CellID(i + 1),
			Address: netip.MustParseAddrPort("127.0.0.1:12421")})
	}
	many[3].Address = netip.AddrPort{} // nobody could reach it: left out
	for _, loopback := range []bool{false, true} {
		joiner := NewJoiner(chacha(1), hello, nil)
		joiner.Loopback = loopback
		reply, _ := answer(t, joiner.Request(), Door{Locked: false, Key: cluster}, Welcome{Key: cluster, Members: many})
		got, err := joiner.Finish(reply)
		want := 0
		if loopback {
			want = MembersMax
		}
		if err != nil || len(got.Members) != want || got.Key != cluster {
			t.Errorf("loopback %t: %d members, %v", loopback, len(got.Members), err)
		}
	}
}

func TestSameSeedSameHandshake(t *testing.T) {
	one, two := NewJoiner(chacha(1), hello, nil), NewJoiner(chacha(1), hello, nil)
	replyOne, _ := answer(t, one.Request(), Door{Locked: false, Key: cluster}, accepted)
	replyTwo, _ := answer(t, two.Request(), Door{Locked: false, Key: cluster}, accepted)
	if !bytes.Equal(one.Request(), two.Request()) || !bytes.Equal(replyOne, replyTwo) {
		t.Fatal("randomness from elsewhere")
	}
	other := NewJoiner(chacha(2), hello, nil)
	if bytes.Equal(one.Request(), other.Request()) {
		t.Fatal("the random source is not used")
	}
}

func TestJoinerPanicsWithoutRandomnessOrName(t *testing.T) {
	for name, f := range map[string]func(){
		"no randomness": func() { NewJoiner(bytes.NewReader(nil), hello, nil) },
		"reserved cell": func() { NewJoiner(chacha(1), Hello{}, nil) },
		"no key":        func() { appendWelcome(nil, Welcome{}) },
		"limit":         func() { NewSeed(chacha(1), Limits{Burst: -1}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestWelcomeComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Welcome{Members: []wire.Contact{}}
		switch rapid.IntRange(0, 2).Draw(t, "outcome") {
		case 0:
			w.Key[rapid.IntRange(0, 31).Draw(t, "at")] = 1
			for i := range rapid.IntRange(0, MembersMax).Draw(t, "members") {
				member := members[i%2]
				member.ID = wire.CellID(rapid.Uint64Range(1, 1<<64-2).Draw(t, "id"))
				w.Members = append(w.Members, member)
			}
		case 1:
			w = Welcome{Collision: true}
		case 2:
			w = Welcome{Refused: rapid.StringMatching(`[ -~]{1,160}`).Draw(t, "text")}
		}
		raw := appendWelcome(nil, w)
		if len(raw) > welcomeSizeMax {
			t.Fatalf("%d bytes", len(raw))
		}
		if got, err := parseWelcome(raw, true); err != nil || !reflect.DeepEqual(got, w) {
			t.Fatalf("%+v came back as %+v, %v", w, got, err)
		}
	})
}

func TestRefusalTextsAreHarmless(t *testing.T) {
	raw := appendWelcome(nil, Welcome{Refused: "\x1b[2J" + strings.Repeat("é", 200)})
	got, err := parseWelcome(raw, false)
	if err != nil || len(got.Refused) != refusedTextMax || strings.ContainsAny(got.Refused, "\x1b\u00e9") {
		t.Fatalf("%q, %v", got.Refused, err)
	}
	if _, err := parseWelcome([]byte{outcomeRefused, 1, 0x1b}, false); err == nil {
		t.Fatal("escape accepted")
	}
	for _, text := range append(refusals[1:], refusalUnknown) {
		if text == "" || len(text) > refusedTextMax {
			t.Errorf("text %q", text)
		}
	}
}

func FuzzWelcome(f *testing.F) {
	f.Add(appendWelcome(nil, accepted))
	f.Add(appendWelcome(nil, Welcome{Collision: true}))
	f.Add(appendWelcome(nil, Welcome{Refused: "no"}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if w, err := parseWelcome(raw, true); err == nil && !bytes.Equal(appendWelcome(nil, w), raw) {
			t.Fatalf("%x has another form", raw)
		}
		if h, err := parseHello(raw); err == nil {
			padded := make([]byte, len(raw))
			appendHello(padded[:0], h)
			if !bytes.Equal(padded, raw) {
				t.Fatalf("%x has another form", raw)
			}
		}
	})
}

func FuzzHandshake(f *testing.F) {
	open, locked := NewJoiner(chacha(1), hello, nil), NewJoiner(chacha(1), hello, doorKey(cluster))
	for _, joiner := range []*Joiner{open, locked} {
		reply, _ := answer(f, joiner.Request(), Door{Locked: false, Key: cluster}, accepted)
		f.Add(joiner.Request(), reply)
	}
	f.Fuzz(func(t *testing.T, request, reply []byte) {
		seed := NewSeed(chacha(9), Limits{})
		if got, ok := seed.Answer(1, source, request, Door{Locked: true, Key: cluster},
			func(Hello) (Welcome, bool) { return accepted, true }); ok {
			if len(got) > len(request) {
				t.Fatalf("reply of %d bytes to %d", len(got), len(request))
			}
			if bytes.Contains(got, cluster[:8]) {
				t.Fatal("the cluster key is readable")
			}
		}
		joiner := NewJoiner(chacha(1), hello, doorKey(cluster))
		if w, err := joiner.Finish(reply); err == nil && !w.Unproven && w.Key != cluster {
			t.Fatalf("took %+v", w)
		}
	})
}

func BenchmarkAnswer(b *testing.B) {
	joiner := NewJoiner(chacha(1), hello, doorKey(cluster))
	seed := NewSeed(chacha(9), Limits{})
	loopback := netip.MustParseAddrPort("127.0.0.1:1")
	for i := 0; b.Loop(); i++ {
		now := clock.Instant(i) * 1e7
		if _, ok := seed.Answer(now, loopback, joiner.Request(), Door{Locked: true, Key: cluster},
			func(Hello) (Welcome, bool) { return accepted, true }); !ok {
			b.Fatal("no answer")
		}
	}
}
