// Package version knows which build of Colloid is running. Every binary of the appliance reports the
// same text, so that a half-finished upgrade shows in `colloid cells`.
package version

import (
	"runtime/debug"
	"strings"
)

// Stamped is set by the linker (-X colloid.net/internal/version.Stamped=...); empty in plain builds.
var Stamped string

// String returns the stamped version, else "devel" with the revision the toolchain recorded.
func String() string {
	if Stamped != "" {
		return Stamped
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	return describe(info.Settings)
}

func describe(settings []debug.BuildSetting) string {
	var revision string
	var modified bool
	for _, s := range settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	var text strings.Builder
	text.WriteString("devel")
	if revision != "" {
		text.WriteString("+" + revision[:min(12, len(revision))])
	}
	if modified {
		text.WriteString("-dirty")
	}
	return text.String()
}
