package main

import (
	"testing"

	"colloid.net/cmd/internal/daemontest"
)

func TestMain(m *testing.M) { daemontest.Main(m, main) }

func TestHelpIsNoMistake(t *testing.T) { daemontest.HelpIsNoMistake(t) }

// Addresses that nobody can be reached at are wrong arguments; they were a panic.
func TestAdvertisedAddressesAreChecked(t *testing.T) {
	one := "--advertise=192.0.2.1"
	for _, flags := range [][]string{
		{"--advertise=0.0.0.0"}, {"--advertise=[::]:9"}, {"--advertise=::ffff:0.0.0.0"}, {"--advertise=224.0.0.1:9"},
		{"--advertise=ff02::1"}, {"--advertise=255.255.255.255"}, {one, one, one, one, one},
	} {
		if _, err := parse(append(flags, "--directory", "/x")); err == nil {
			t.Errorf("%q is taken", flags)
		}
	}
	if _, err := parse([]string{one, "--advertise=[2001:db8::1]:9", "--advertise=127.0.0.1", "--directory", "/x"}); err != nil {
		t.Error(err)
	}
}
