package cli

import (
	"strconv"
	"strings"
	"testing"

	"colloid.net/ipc/invoke"
	"colloid.net/ipc/uds"
)

// TestWasmInvokeSendsTheCallAndPrintsTheOutput: the fake daemon echoes the arguments, joined by commas.
func TestWasmInvokeSendsTheCallAndPrintsTheOutput(t *testing.T) {
	d := newFake(t)
	for _, c := range []struct{ arguments, output string }{
		{"wasm invoke thumbs a b", "thumbs colloid_invoke 1000 0: a,b\n"},
		{"wasm invoke --function add --timeout 2s wasm.thumbs 2 -3", "wasm.thumbs add 2000 0: 2,-3\n"},
		{"wasm invoke --clock 7 thumbs", "thumbs colloid_invoke 1000 7: \n"},
		{"wasm invoke -o hex thumbs", "7468756d627320636f6c6c6f69645f696e766f6b65203130303020303a20\n"},
	} {
		out, errors, code := d.words(strings.Fields(c.arguments)...)
		if code != ExitOK || out != c.output {
			t.Errorf("%s: exit %d, %q, %q", c.arguments, code, out, errors)
		}
	}
	out, _, code := d.words("wasm", "invoke", "-o", "json", "thumbs", "x")
	for _, want := range []string{`"status": 0`, `"output": "thumbs colloid_invoke 1000 0: x"`, `"milliseconds": 1.5`} {
		if code != ExitOK || !strings.Contains(out, want) {
			t.Errorf("exit %d, %s lacks %s", code, out, want)
		}
	}
}

func TestWasmInvokeSaysWhatIsWrong(t *testing.T) {
	d := newFake(t)
	for _, c := range []struct {
		arguments string
		exit      int
		message   string
	}{
		{"wasm invoke", ExitUsage, "0 arguments do not fit: write colloid wasm invoke NAME [ARGUMENT ...]"},
		{"wasm invoke -o text thumbs", ExitUsage, "use raw, hex or json"},
		{"wasm invoke --timeout 2h thumbs", ExitUsage, "expected 1ms to 1m0s"},
		{"wasm invoke --function " + strings.Repeat("f", 129) + " thumbs", ExitUsage, "function name of 129 bytes"},
		{"wasm invoke fail x", ExitError, "the function returned status 3"},
	} {
		_, errors, code := d.words(strings.Fields(c.arguments)...)
		if code != c.exit || !strings.Contains(errors, c.message) {
			t.Errorf("%s: exit %d, %q", c.arguments, code, errors)
		}
	}
	d.refuse[uds.CodeWasmInvoke] = refusal{uds.ErrorDeadline, "thumbs: spin took longer than its deadline of 1000 ms"}
	if _, errors, code := d.words("wasm", "invoke", "thumbs"); code != ExitError ||
		!strings.Contains(errors, "took longer than its deadline of 1000 ms: allow more with --timeout") {
		t.Errorf("exit %d, %q", code, errors)
	}
	d.refuse[uds.CodeWasmInvoke] = refusal{uds.ErrorNotFound, "thumbs has no instance that can be invoked"}
	if _, errors, code := d.words("wasm", "invoke", "thumbs"); code != ExitError ||
		!strings.Contains(errors, "has no instance that can be invoked") {
		t.Errorf("exit %d, %q", code, errors)
	}
}

// words runs a command line and takes its result apart.
func (d *fakeDaemon) words(arguments ...string) (output, errors string, exit int) {
	r := d.run("", arguments...)
	return r.output, r.errors, r.exit
}

// invoke answers WASM_INVOKE of the fake daemon.
func (d *fakeDaemon) invoke(payload []byte) (uds.ReplyStatus, []byte) {
	name, call, err := invoke.ParseCall(payload)
	if err != nil {
		d.t.Error(err)
	}
	if call.Function == "" {
		call.Function = "colloid_invoke"
	}
	var arguments []string
	for _, argument := range call.Arguments {
		arguments = append(arguments, string(argument))
	}
	result := &invoke.Result{Nanos: 1_500_000, Output: []byte(strings.TrimSpace(name) + " " + call.Function + " " +
		strconv.Itoa(int(call.Milliseconds)) + " " + strconv.FormatUint(call.Clock, 10) + ": " + strings.Join(arguments, ","))}
	if name == "fail" {
		result.Status = 3
	}
	return uds.OK, invoke.AppendOutcome(nil, result)
}
