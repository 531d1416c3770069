package wasm

import "golang.org/x/sys/unix"

const (
	auditArchitecture = unix.AUDIT_ARCH_X86_64
	sysFstatat        = unix.SYS_NEWFSTATAT
)
