package main

import (
	"testing"

	"colloid.net/cmd/internal/daemontest"
)

func TestMain(m *testing.M) { daemontest.Main(m, main) }

func TestHelpIsNoMistake(t *testing.T) { daemontest.HelpIsNoMistake(t) }
