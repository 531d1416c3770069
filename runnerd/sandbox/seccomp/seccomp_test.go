package seccomp

import (
	"encoding/binary"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	library "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
)

// TestF138_TheFilterIsTheList compares the generated program with what go-seccomp-bpf makes of the same
// list, for every number and for the arguments that matter.
func TestF138_TheFilterIsTheList(t *testing.T) {
	info, err := arch.GetInfo(runtime.GOARCH)
	if err != nil {
		t.Skip(err)
	}
	fast := machine(t, raw())
	slow := machine(t, oracle(t, info))
	arguments := []uint64{0, 1, 2, 10, 16, 17, 40, 38, 0x11, 0x01200011, 0x10000011, 0x00020000, 0x7e020080, 0x3d0f00,
		0x20008, 0xffffffff, 1 << 32, 1<<32 | 2, 1 << 63, 0x0400000}
	for number := range uint32(NumberMax + 60) {
		for _, argument := range arguments {
			packet := packet(number, uint32(info.ID), argument)
			got, want := run(t, fast, packet), run(t, slow, packet)
			if number > NumberMax {
				want = 0x50026 // the older program of the library does not know what is beyond its table
			}
			if got != want {
				t.Fatalf("call %d (%s) with %#x: %#x, expected %#x", number, info.SyscallNumbers[int(number)], argument, got, want)
			}
		}
	}
	for _, other := range []uint32{0x40000003, 0xc00000b7 ^ 0x3e, 0} { // calls of another architecture
		if got := run(t, fast, packet(1, other, 0)); got != 0x50001 {
			t.Errorf("architecture %#x is answered with %#x", other, got)
		}
	}
	if got := run(t, fast, packet(0x40000000, uint32(info.ID), 0)); got != 0x50026 { // x32
		t.Errorf("x32 is answered with %#x", got)
	}
}

// TestF138_WhatIsLeftOutStaysOut names the calls that no revision of the list may let in.
func TestF138_WhatIsLeftOutStaysOut(t *testing.T) {
	for _, name := range []string{
		"mount", "umount2", "move_mount", "open_tree", "fsopen", "fsmount", "fsconfig", "mount_setattr", "pivot_root", "chroot",
		"setns", "unshare", "clone3", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter",
		"io_uring_register", "keyctl", "add_key", "request_key", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp",
		"pidfd_getfd", "open_by_handle_at", "name_to_handle_at", "init_module", "finit_module", "delete_module", "kexec_load",
		"kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "settimeofday", "clock_settime",
		"clock_adjtime", "adjtimex", "syslog", "iopl", "ioperm", "vhangup", "lookup_dcookie", "fanotify_init", "move_pages",
		"migrate_pages", "memfd_secret", "modify_ldt", "sethostname", "setdomainname", "nfsservctl", "uselib", "ustat", "sysfs",
	} {
		if slices.Contains(Allowed, name) {
			t.Errorf("%s is allowed", name)
		}
	}
	for _, name := range Allowed {
		_, x86 := arch.X86_64.SyscallNames[name]
		_, arm := arch.AARCH64.SyscallNames[name]
		if !x86 && !arm {
			t.Errorf("%s is no system call", name)
		}
	}
}

func raw() []bpf.RawInstruction {
	var list []bpf.RawInstruction
	for _, i := range filter {
		list = append(list, bpf.RawInstruction{Op: i.code, Jt: i.jt, Jf: i.jf, K: i.k})
	}
	return list
}

// oracle lets the library assemble the list.
func oracle(t *testing.T, info *arch.Info) []bpf.RawInstruction {
	t.Helper()
	known := func(names []string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			_, found := info.SyscallNames[name]
			return !found
		})
	}
	condition := func(name string, operation library.Operation, value uint64) library.NameWithConditions {
		return library.NameWithConditions{Name: name, Conditions: []library.Condition{{Operation: operation, Value: value}}}
	}
	allow := library.SyscallGroup{Action: library.ActionAllow, Names: known(Allowed)}
	allow.NamesWithCondtions = append(allow.NamesWithCondtions, condition("clone", library.BitsNotSet, NamespaceFlags))
	for _, family := range SocketFamilies {
		allow.NamesWithCondtions = append(allow.NamesWithCondtions, condition("socket", library.Equal, family))
	}
	for _, persona := range Personalities {
		allow.NamesWithCondtions = append(allow.NamesWithCondtions, condition("personality", library.Equal, persona))
	}
	policy := library.Policy{DefaultAction: library.ActionErrno, Syscalls: []library.SyscallGroup{
		allow, {Action: library.Action(0x50026), Names: known(Unavailable)},
	}}
	field := reflect.ValueOf(&policy).Elem().FieldByName("arch")
	reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Set(reflect.ValueOf(info))
	program, err := policy.Assemble()
	if err != nil {
		t.Fatal(err)
	}
	assembled, err := bpf.Assemble(program)
	if err != nil {
		t.Fatal(err)
	}
	return assembled
}

func machine(t *testing.T, list []bpf.RawInstruction) *bpf.VM {
	t.Helper()
	program, ok := bpf.Disassemble(list)
	if !ok {
		t.Fatal("not a program")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

// packet is struct seccomp_data as the virtual machine of package bpf wants it: it reads big-endian words.
func packet(number, architecture uint32, argument uint64) []byte {
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data, number)
	binary.BigEndian.PutUint32(data[4:], architecture)
	binary.BigEndian.PutUint32(data[16:], uint32(argument))
	binary.BigEndian.PutUint32(data[20:], uint32(argument>>32))
	return data
}

func run(t *testing.T, vm *bpf.VM, packet []byte) uint32 {
	t.Helper()
	got, err := vm.Run(packet)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(got)
}
