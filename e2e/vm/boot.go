package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// guest is what QEMU is started with.
type guest struct {
	kernel, initial, disk string
	result                string // file of the second serial port
	counted               bool   // its clock counts instructions
	log                   *log
}

// boot runs the guest and returns the exit code that it reported, or 1 if it skipped what it should not.
func (g guest) boot(ctx context.Context, chosen []suite) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	quiet := "quiet loglevel=1"
	if *verbose {
		quiet = "loglevel=6"
	}
	processors := []string{"-accel", "tcg,thread=multi", "-smp", "2"}
	if g.counted {
		// An instruction takes a nanosecond of the guest's time, and time without any passes at once: what is measured
		// is what a processor of so many instructions per second would do, however slowly it is emulated.
		processors = []string{"-accel", "tcg,thread=single", "-smp", "1", "-icount", "shift=0,sleep=off"}
	}
	command := exec.CommandContext(ctx, "qemu-system-x86_64", append(processors,
		"-M", "q35", "-cpu", "max", "-m", strconv.Itoa(*memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", g.kernel, "-initrd", g.initial,
		// no_timer_check: where the emulator gets little time, the kernel takes its timer for broken.
		"-append", "console=ttyS0 "+quiet+" panic=1 mitigations=off nokaslr no_timer_check",
		"-drive", "file="+g.disk+",format=raw,if=virtio,cache=unsafe",
		"-serial", "stdio", "-serial", "file:"+g.result)...)
	command.Stderr = os.Stderr
	console, err := command.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := command.Start(); err != nil {
		return 0, fmt.Errorf("start QEMU: %w", err)
	}
	seen := report{chosen: chosen, log: g.log}
	lines := bufio.NewScanner(console)
	lines.Buffer(make([]byte, 0, 1<<16), 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		seen.read(line)
		g.log.printf("%s", line)
	}
	waited := command.Wait()
	if state := command.ProcessState; state != nil {
		g.log.printf("vm: QEMU used %.0f s of processor time", (state.UserTime() + state.SystemTime()).Seconds())
	}
	if ctx.Err() != nil {
		return 0, fmt.Errorf("the guest did not end within %v", *timeout)
	}
	content, err := os.ReadFile(g.result)
	if err != nil {
		return 0, err
	}
	_, after, found := strings.Cut(string(content), "EXIT:")
	code, err := strconv.Atoi(strings.TrimSpace(after))
	if !found || err != nil {
		return 0, fmt.Errorf("the guest ended without a result (QEMU: %v)", waited)
	}
	if !seen.good() && code == 0 {
		code = 1
	}
	return code, nil
}

// report follows what the suites print.
type report struct {
	chosen  []suite
	current suite
	passed  map[string]int // top-level tests by suite
	skipped []string
	log     *log
}

// read takes one line of the console.
func (r *report) read(line string) {
	if r.passed == nil {
		r.passed = map[string]int{}
	}
	if name, found := strings.CutPrefix(line, suiteMark); found {
		for _, s := range r.chosen {
			if s.name == name {
				r.current = s
			}
		}
	}
	if strings.HasPrefix(line, "--- PASS: ") {
		r.passed[r.current.name]++
	}
	name, found := strings.CutPrefix(strings.TrimSpace(line), "--- SKIP: ")
	if !found {
		return
	}
	name, _, _ = strings.Cut(name, " ")
	test, _, _ := strings.Cut(name, "/")
	if _, may := r.current.skips[test]; !may {
		r.skipped = append(r.skipped, r.current.name+" "+name)
	}
}

// good says what was run, and reports whether every suite did what it is for.
func (r *report) good() bool {
	good := true
	for _, s := range r.chosen {
		r.log.printf("vm: %s: %d tests passed", s.name, r.passed[s.name])
		if r.passed[s.name] == 0 {
			r.log.printf("vm: %s: nothing was tested", s.name)
			good = false
		}
	}
	for _, name := range r.skipped {
		r.log.printf("vm: skipped, which counts as failed here: %s", name)
		good = false
	}
	return good
}
