package control

import (
	"strings"
	"testing"

	"colloid.net/ipc/uds"
)

// F83: the log of changes names the workload of an environment and never shows what is in it.
func TestF83_LogNeverShowsSecrets(t *testing.T) {
	for _, payload := range [][]byte{
		uds.EnvironmentRequest{Store: true, Key: "spread.web", Plain: []byte("geheim")}.Append(nil), []byte("\x09geheim"), nil,
	} {
		if text := describe(uds.CodeEnvironment, payload); strings.Contains(text, "geheim") || !strings.Contains(text, "environment") {
			t.Errorf("the log says %q", text)
		}
	}
	if levels[uds.CodeEnvironment] != levelWrite || levels[uds.CodeDrain] != levelWrite {
		t.Error("readers may change")
	}
}
