//go:build wasip1

// Command wasi does with WASI preview 1 what its first argument says, and prints what came of it. The test
// compares that with what a host gives to any program.
package main

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Println("no word")
		os.Exit(2)
	}
	switch os.Args[1] {
	case "args":
		fmt.Printf("%q\n", os.Args)
	case "env":
		list := os.Environ()
		sort.Strings(list)
		fmt.Printf("%q\n", list)
	case "stdio":
		fmt.Println("to stdout")
		fmt.Fprintln(os.Stderr, "to stderr")
		line, err := bufio.NewReader(os.Stdin).ReadString('\n')
		fmt.Printf("stdin %q %v\n", line, err == io.EOF)
	case "exit":
		os.Exit(7)
	case "panic":
		panic("on purpose")
	case "clock":
		before := time.Now()
		time.Sleep(20 * time.Millisecond)
		took := time.Since(before)
		fmt.Println(before.Year() >= 2024, took >= 20*time.Millisecond && took < 10*time.Second)
	case "random":
		var a, b [32]byte
		_, err := rand.Read(a[:])
		_, err2 := rand.Read(b[:])
		fmt.Println(a != b, err, err2)
	case "files":
		files()
	case "readonly":
		readOnly()
	case "preview1":
		preview1(os.Args[2])
	case "escape":
		escape()
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	return value
}

func check(err error) { must(0, err) }

func files() {
	check(os.MkdirAll("/data/a/b", 0o755))
	check(os.WriteFile("/data/a/one", []byte("0123456789"), 0o644))
	file := must(os.OpenFile("/data/a/one", os.O_RDWR, 0))
	fmt.Println("seek", must(file.Seek(-3, io.SeekEnd)))
	fmt.Printf("read %q\n", must(io.ReadAll(file)))
	at := make([]byte, 4)
	fmt.Println("pread", must(file.ReadAt(at, 2)), string(at))
	fmt.Println("pwrite", must(file.WriteAt([]byte("XY"), 4)))
	check(file.Truncate(8))
	check(file.Sync())
	info := must(file.Stat())
	fmt.Println("stat", info.Size(), info.Mode().IsRegular(), info.Name())
	check(file.Close())
	fmt.Printf("content %q\n", must(os.ReadFile("/data/a/one")))
	appended := must(os.OpenFile("/data/a/one", os.O_WRONLY|os.O_APPEND, 0))
	must(appended.WriteString("!"))
	check(appended.Close())
	check(os.Rename("/data/a/one", "/data/a/two"))
	check(os.Symlink("two", "/data/a/link"))
	fmt.Println("link", must(os.Readlink("/data/a/link")), string(must(os.ReadFile("/data/a/link"))))
	for n := range 100 {
		check(os.WriteFile(fmt.Sprintf("/data/a/b/f%02d", n), nil, 0o600))
	}
	fmt.Println("readdir", len(must(os.ReadDir("/data/a/b"))))
	var names []string
	for _, entry := range must(os.ReadDir("/data/a")) {
		names = append(names, fmt.Sprint(entry.Name(), entry.IsDir()))
	}
	fmt.Println("entries", names)
	_, err := os.OpenFile("/data/a/two", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	fmt.Println("exclusive", errors.Is(err, os.ErrExist))
	fmt.Println("rmdir", os.Remove("/data/a/b") != nil)
	check(os.RemoveAll("/data/a/b"))
	check(os.Remove("/data/a/link"))
	_, err = os.Stat("/data/a/b")
	fmt.Println("gone", errors.Is(err, os.ErrNotExist))
}

func readOnly() {
	fmt.Printf("read %q\n", must(os.ReadFile("/data/file")))
	fmt.Println(os.WriteFile("/data/file", []byte("x"), 0o644) != nil, os.WriteFile("/data/new", nil, 0o644) != nil,
		os.Mkdir("/data/d", 0o755) != nil, os.Remove("/data/file") != nil, os.Rename("/data/file", "/data/g") != nil)
}

// escape tries to reach what the host put beside the volume.
func escape() {
	for _, name := range []string{
		"/data/../secret", "/data/../../etc/passwd", "/etc/passwd", "../secret", "/data/absolute", "/data/up",
		"/data/directory/secret", "/data/loop", "/secret",
	} {
		_, err := os.ReadFile(name)
		_, statErr := os.Stat(name)
		writeErr := os.WriteFile(name, []byte("planted"), 0o644)
		fmt.Println(name, err != nil, statErr != nil, writeErr != nil)
	}
	fmt.Println("absolute link", os.Symlink("/etc/passwd", "/data/mine") != nil)
	fmt.Println("link up", os.Symlink("../secret", "/data/mine") != nil)
	fmt.Println("hard link", os.Link("/data/up", "/data/hard") == nil && readable("/data/hard"))
	fmt.Println("rename out", os.Rename("/data/own", "/data/../out") != nil)
	_ = filepath.Walk("/data", func(path string, _ os.FileInfo, err error) error {
		if strings.Contains(path, "secret") && !strings.Contains(path, "directory") {
			fmt.Println("walked to", path)
		}
		return nil
	})
}

func readable(name string) bool {
	_, err := os.ReadFile(name)
	return err == nil
}
