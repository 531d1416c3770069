package policy

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"colloid.net/workload"
	"colloid.net/workload/syntax"
)

// Permit is what Check allows: the listed binary and the account that runs it.
type Permit struct {
	Process *Process
	User    User
	// Health is the listed binary of an exec health check, nil without one.
	Health *Process
	// Module is the address of the allowed module; Process is nil then.
	Module string
	// Image is the reference of an allowed container, "" for a process.
	Image string
	// Containers is what the policy says of containers, where Image is set.
	Containers Containers
}

// String says what is allowed, for the audit log.
func (p Permit) String() string {
	if p.Module != "" {
		return "module " + p.Module
	}
	if p.Image != "" {
		return "container " + p.Image
	}
	return fmt.Sprintf("%s as %s", p.Process.Path, p.User.Name)
}

// Check compares a decoded specification with the policy. It reads no file: the digest of the binary
// is compared at each start (Process.Accepts). The error is one sentence for the operator.
func (p *Policy) Check(spec *workload.Spec) (Permit, error) {
	switch spec.Runtime {
	case workload.RuntimeProcess:
		return p.checkProcess(spec)
	case workload.RuntimeOCI:
		return p.checkContainer(spec)
	case workload.RuntimeWasm:
		return p.checkWasm(spec)
	}
	return Permit{}, fmt.Errorf("runtime class %d is unknown to this runnerd", spec.Runtime)
}

// Variables checks the variables that come beside the specification (F83). Errors never show a value.
func (p Permit) Variables(variables []string) error {
	if len(variables) > 0 && p.Process != nil && !p.Process.Variables {
		return fmt.Errorf("the host's policy allows %s no environment variables (env any)", p.Process.Path)
	}
	if p.Module != "" {
		return checkModuleVariables(variables)
	}
	return checkVariables(variables)
}

func (p *Policy) checkProcess(spec *workload.Spec) (Permit, error) {
	process := p.process(spec.Image)
	if process == nil {
		return Permit{}, fmt.Errorf("the host's policy does not list process %s", syntax.Quote(spec.Image))
	}
	permit := Permit{Process: process}
	account, err := process.account(spec.User)
	if err != nil {
		return Permit{}, err
	}
	permit.User = account
	switch {
	case len(spec.Arguments) > 0 && !process.Arguments:
		return Permit{}, fmt.Errorf("the host's policy allows %s no arguments (args any)", process.Path)
	case len(spec.Environment) > 0 && !process.Variables:
		return Permit{}, fmt.Errorf("the host's policy allows %s no environment variables (env any)", process.Path)
	case len(spec.Volumes) > 0:
		return Permit{}, errors.New("volumes are not supported for host processes: they see the host's files")
	case len(spec.Command) > 0:
		return Permit{}, errors.New("a host process has no command: its path is the process, its words are args")
	}
	if err := p.checkHealth(&permit, spec); err != nil {
		return Permit{}, err
	}
	if err := checkVariables(spec.Environment); err != nil {
		return Permit{}, err
	}
	if err := checkWords(spec.Arguments); err != nil {
		return Permit{}, err
	}
	return permit, p.checkPorts(process, spec)
}

func (process *Process) account(name string) (User, error) {
	account := process.Users[0]
	if name != "" {
		i := slices.IndexFunc(process.Users, func(u User) bool {
			return u.Name == name || fmt.Sprint(u.UID) == name
		})
		if i < 0 {
			return User{}, fmt.Errorf("the host's policy does not let %s run as user %s",
				process.Path, syntax.Quote(name))
		}
		account = process.Users[i]
	}
	if euid := os.Geteuid(); euid != 0 && account.UID != uint32(euid) {
		return User{}, fmt.Errorf("%s must run as user %s, but runnerd itself runs as uid %d and cannot switch",
			process.Path, account.Name, euid)
	}
	return account, nil
}

func (p *Policy) checkHealth(permit *Permit, spec *workload.Spec) error {
	if spec.Health.Kind != workload.HealthExec {
		return nil
	}
	if len(spec.Health.Command) == 0 {
		return errors.New("the exec health check names no program")
	}
	path := spec.Health.Command[0]
	process := p.process(path)
	if process == nil {
		return fmt.Errorf("the host's policy does not list %s, which the health check runs", syntax.Quote(path))
	}
	if len(spec.Health.Command) > 1 && !process.Arguments {
		return fmt.Errorf("the host's policy allows %s no arguments (args any), the health check passes some", path)
	}
	if !slices.ContainsFunc(process.Users, func(u User) bool { return u.UID == permit.User.UID }) {
		return fmt.Errorf("the host's policy does not let %s, which the health check runs, run as user %s",
			path, permit.User.Name)
	}
	permit.Health = process
	return checkWords(spec.Health.Command)
}

func (p *Policy) checkPorts(process *Process, spec *workload.Spec) error {
	for _, port := range spec.Ports {
		number := port.Host
		if number == 0 {
			number = port.Container
		}
		if number < p.PortMin {
			return fmt.Errorf("port %d is below port_min %d of the host's policy", number, p.PortMin)
		}
		listed := func(r Range) bool { return r.First <= number && number <= r.Last }
		if !slices.ContainsFunc(process.Ports, listed) {
			return fmt.Errorf("the host's policy does not let %s publish port %d", process.Path, number)
		}
	}
	return nil
}

// reserved are the variables that runnerd sets itself.
var reserved = []string{"COLLOID_", "PORT_"}

// loaders change what code a program loads before its first instruction. No policy allows them.
var loaders = []string{"LD_", "GLIBC_TUNABLES", "GCONV_PATH", "NLSPATH", "LOCPATH", "MALLOC_"}

func checkVariables(environment []string) error {
	for _, variable := range environment {
		name, _, found := strings.Cut(variable, "=")
		if !found || !syntax.ValidVariable(name) || strings.ContainsRune(variable, 0) {
			return fmt.Errorf("environment variable %s is not NAME=value", syntax.Quote(name)) // the value may be secret
		}
		for _, prefix := range loaders {
			if strings.HasPrefix(name, prefix) {
				return fmt.Errorf("environment variable %s is never passed on: it changes what a program loads", name)
			}
		}
		for _, prefix := range reserved {
			if name == "PORT" || strings.HasPrefix(name, prefix) {
				return fmt.Errorf("environment variable %s is set by runnerd itself", name)
			}
		}
	}
	return nil
}

func checkWords(words []string) error {
	for _, word := range words {
		if strings.ContainsRune(word, 0) {
			return fmt.Errorf("argument %s holds a zero byte", syntax.Quote(word))
		}
	}
	return nil
}

// Accepts reports whether a file with this digest is one of those listed; wanted is the digest the
// specification asks for, zero for none.
func (process *Process) Accepts(digest, wanted [32]byte) error {
	if !process.AnyDigest && !slices.Contains(process.Digests, digest) {
		return fmt.Errorf("%s has sha256 %x, which the host's policy does not list", process.Path, digest)
	}
	if wanted != [32]byte{} && wanted != digest {
		return fmt.Errorf("%s has sha256 %x, the specification asks for %x", process.Path, digest, wanted)
	}
	return nil
}
