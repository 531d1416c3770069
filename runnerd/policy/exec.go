package policy

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"path"
	"slices"
	"strings"

	"colloid.net/ipc/grant"
	"colloid.net/workload/syntax"
)

// OperatorsMax bounds the operators of a host.
const OperatorsMax = 64

// Operator is somebody who may open a program in an instance, with a grant that this key has signed (F137).
type Operator struct {
	Name string
	Key  ed25519.PublicKey
}

// AllowsExec reports whether operators may open programs in a workload and copy its files. Without a
// statement nobody may.
func (p *Policy) AllowsExec(key string) bool {
	_, name, _ := strings.Cut(key, ".")
	return slices.ContainsFunc(p.Exec, func(pattern string) bool {
		full, _ := path.Match(pattern, key)
		short, _ := path.Match(pattern, name)
		return full || short
	})
}

// Operator finds the operator with a key, nil if there is none.
func (p *Policy) Operator(id [grant.KeyIDSize]byte) *Operator {
	for i := range p.Operators {
		if grant.KeyID(p.Operators[i].Key) == id {
			return &p.Operators[i]
		}
	}
	return nil
}

// exec reads the patterns of workloads, which may stand several times.
func (p *parser) exec(s *syntax.Statement) {
	if s.Block || len(s.Arguments) == 0 {
		p.complain(s.Position, "exec needs names of workloads, as in exec web db-*, and no block")
		return
	}
	for _, word := range s.Arguments {
		if _, err := path.Match(word.Text, ""); err != nil || word.Text == "" || len(word.Text) > grant.NameMax ||
			len(p.policy.Exec) >= patternsMax {
			p.complain(word.Position, "exec is %s, expected a workload as in web or spread.web, in which * stands for any "+
				"characters, at most %d", syntax.Quote(word.Text), patternsMax)
			continue
		}
		p.policy.Exec = append(p.policy.Exec, word.Text)
	}
}

func (p *parser) operator(s *syntax.Statement) {
	if s.Block || len(s.Arguments) != 2 {
		p.complain(s.Position, "operator needs a name and a key, as `colloid operator show` prints them")
		return
	}
	name, text := s.Arguments[0].Text, s.Arguments[1].Text
	key, err := hex.DecodeString(text)
	switch {
	case err != nil || len(key) != ed25519.PublicKeySize || bytes.Equal(key, make([]byte, len(key))):
		p.complain(s.Arguments[1].Position, "key is %s, expected the %d hexadecimal digits that `colloid operator show` prints",
			syntax.Quote(text), 2*ed25519.PublicKeySize)
	case name == "" || len(name) > 64:
		p.complain(s.Arguments[0].Position, "operator is %s, expected a name of at most 64 bytes", syntax.Quote(name))
	case p.policy.Operator(grant.KeyID(key)) != nil:
		p.complain(s.Position, "the key of operator %s is given twice, expected once", syntax.Quote(name))
	case len(p.policy.Operators) >= OperatorsMax:
		p.complain(s.Position, "more than %d operators", OperatorsMax)
	default:
		p.policy.Operators = append(p.policy.Operators, Operator{Name: name, Key: key})
	}
}
