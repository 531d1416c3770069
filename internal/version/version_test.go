package version

import (
	"runtime/debug"
	"testing"
)

func TestStampedVersionWins(t *testing.T) {
	defer func(old string) { Stamped = old }(Stamped)
	Stamped = "1.2.3"
	if got := String(); got != "1.2.3" {
		t.Fatalf("String() = %q, want the stamped version", got)
	}
	Stamped = ""
	if got := String(); got == "" {
		t.Fatal("an unstamped build has no version at all")
	}
}

func TestDescribeNamesRevisionAndLocalChanges(t *testing.T) {
	for _, c := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, "devel"},
		{[]debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}}, "devel+abc"},
		{[]debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"}},
			"devel+0123456789ab-dirty"},
	} {
		if got := describe(c.settings); got != c.want {
			t.Errorf("describe(%v) = %q, want %q", c.settings, got, c.want)
		}
	}
}
