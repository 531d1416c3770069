package shim

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ExtraFirst is the first descriptor of Config.Extra in shim, stage and workload. It lies above whatever a
// sandbox adds and above what a shim keeps open for itself, so that it is the same everywhere.
const ExtraFirst = 200

// extraMax bounds Config.Extra.
const extraMax = 8

// placeExtra puts a descriptor at the place of the extra one of that number.
func placeExtra(files []uintptr, number int, descriptor uintptr) []uintptr {
	for len(files) <= ExtraFirst+number {
		files = append(files, ^uintptr(0)) // closed
	}
	files[ExtraFirst+number] = descriptor
	return files
}

// forwardExtra adds the extra descriptors of the shim to those of a stage.
func (c *Config) forwardExtra(files []uintptr) []uintptr {
	for i := range c.extra {
		files = placeExtra(files, i, uintptr(ExtraFirst+i))
	}
	return files
}

// dropExtra closes the shim's copies, when the stage has its own.
func (c *Config) dropExtra() {
	for i := range c.extra {
		unix.Close(ExtraFirst + i)
	}
	c.extra = 0
}

// keepExtra lets the workload inherit them.
func (c *Config) keepExtra() error {
	for i := range c.extra {
		if _, err := unix.FcntlInt(uintptr(ExtraFirst+i), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("stage: extra descriptor %d: %w", i, err)
		}
	}
	return nil
}
