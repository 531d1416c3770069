package wasm

import "golang.org/x/sys/unix"

const (
	auditArchitecture = unix.AUDIT_ARCH_AARCH64
	sysFstatat        = unix.SYS_FSTATAT
)
