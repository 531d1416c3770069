package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// boot runs the guest and returns the exit code that it reported.
func boot(ctx context.Context, kernel, image, work string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	result := filepath.Join(work, "result")
	quiet := "quiet loglevel=1"
	if *verbose {
		quiet = "loglevel=6"
	}
	command := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", strconv.Itoa(*memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", kernel, "-initrd", image,
		"-append", "console=ttyS0 "+quiet+" panic=1 mitigations=off nokaslr",
		"-serial", "stdio", "-serial", "file:"+result)
	command.Stderr = os.Stderr
	console, err := command.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := command.Start(); err != nil {
		return 0, fmt.Errorf("start QEMU: %w", err)
	}
	lines := bufio.NewScanner(console)
	lines.Buffer(make([]byte, 0, 1<<16), 1<<20)
	for lines.Scan() {
		fmt.Println(strings.TrimRight(lines.Text(), "\r"))
	}
	waited := command.Wait()
	if ctx.Err() != nil {
		return 0, fmt.Errorf("the guest did not end within %v", *timeout)
	}
	content, err := os.ReadFile(result)
	if err != nil {
		return 0, err
	}
	_, after, found := strings.Cut(string(content), "EXIT:")
	code, err := strconv.Atoi(strings.TrimSpace(after))
	if !found || err != nil {
		return 0, fmt.Errorf("the guest ended without a result (QEMU: %v)", waited)
	}
	return code, nil
}
