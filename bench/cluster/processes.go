package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// colloidProcesses is a cluster of daemons without helpers, one process each, all in one process group. A
// child says on its standard output what its cell has come to know; the parent only has to remember.
type colloidProcesses struct {
	directory string
	cells     []*colloidCell
}

type colloidCell struct {
	command *exec.Cmd
	input   io.WriteCloser
	id      string

	mutex sync.Mutex
	alive int
	known map[string]bool // keys and deaths
}

func (c *colloidProcesses) start(n int) (err error) {
	if c.directory, err = os.MkdirTemp("", "colloid-bench-"); err != nil {
		return err
	}
	for i := range n {
		one := &colloidCell{known: make(map[string]bool)}
		one.command = exec.Command("/proc/self/exe")
		one.command.Env = append(os.Environ(), childVariable+"="+filepath.Join(c.directory, fmt.Sprint(i)),
			fmt.Sprintf("%s=%d", portVariable, basePort+i), driverVariable+"="+*processDriver)
		one.command.Stderr = os.Stderr
		if one.input, err = one.command.StdinPipe(); err != nil {
			return err
		}
		output, err := one.command.StdoutPipe()
		if err != nil {
			return err
		}
		if err := one.command.Start(); err != nil {
			return err
		}
		c.cells = append(c.cells, one)
		lines := bufio.NewScanner(output)
		for one.id == "" {
			if !lines.Scan() {
				return fmt.Errorf("cell %d did not start", i)
			}
			if id, ok := strings.CutPrefix(lines.Text(), "id "); ok {
				one.id = id
			}
		}
		go one.listen(lines)
	}
	return nil
}

// listen takes the lines "alive N", "key NAME" and "dead ID".
func (o *colloidCell) listen(lines *bufio.Scanner) {
	for lines.Scan() {
		text := lines.Text()
		o.mutex.Lock()
		if _, err := fmt.Sscanf(text, "alive %d", &o.alive); err != nil {
			o.known[text] = true
		}
		o.mutex.Unlock()
	}
}

func (o *colloidCell) knows(text string) bool {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.known[text]
}

func (c *colloidProcesses) join() {
	for _, one := range c.cells[1:] {
		fmt.Fprintf(one.input, "join 127.0.0.1:%d\n", basePort)
	}
}

func (c *colloidProcesses) full(i, n int) bool {
	c.cells[i].mutex.Lock()
	defer c.cells[i].mutex.Unlock()
	return c.cells[i].alive >= n
}

func (c *colloidProcesses) write(i int, name string, size int) error {
	_, err := fmt.Fprintf(c.cells[i].input, "write %s %d\n", name, size)
	return err
}

func (c *colloidProcesses) has(i int, name string) bool { return c.cells[i].knows("key " + name) }

func (c *colloidProcesses) kill(i int) {
	c.cells[i].command.Process.Signal(syscall.SIGKILL)
	c.cells[i].command.Wait()
}

func (c *colloidProcesses) knowsDead(i, victim int) bool {
	return c.cells[i].knows("dead " + c.cells[victim].id)
}

func (c *colloidProcesses) stop() {
	for _, one := range c.cells {
		one.input.Close()
	}
	for _, one := range c.cells {
		one.command.Wait()
	}
	os.RemoveAll(c.directory)
}
