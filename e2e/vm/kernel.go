package main

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// kernel is an unpacked kernel package.
type kernel struct {
	release string
	image   string   // vmlinuz
	modules []string // files, in the order in which they must be loaded
}

// modulesWanted are the parts of the kernel that the suites need and Debian builds as modules. A distribution loads them
// when they are asked for; the guest has all of them from the start. A name that ends in * means all that begin so.
var modulesWanted = []string{
	"virtio_pci", "virtio_blk", "quota_v2",
	"overlay", "veth", "bridge", "tun", "dummy", "sch_netem",
	"nf_tables", "nf_conntrack", "nf_nat", "nft_*",
}

const metaPackage = "linux-image-cloud-amd64"

var packagePattern = regexp.MustCompile(`linux-image-(6\.1\.[0-9a-z.+-]+)`)

// findKernel takes the kernel out of the cache, or downloads the package first.
func findKernel(ctx context.Context) (kernel, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return kernel{}, fmt.Errorf("no cache directory: %w", err)
	}
	cache = filepath.Join(cache, "colloid-vm")
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", metaPackage).Output()
	match := packagePattern.FindSubmatch(out)
	if err != nil || match == nil {
		return kernel{}, cannot{fmt.Errorf("apt knows no %s with a 6.1 kernel (Debian 12 has one)", metaPackage)}
	}
	k := kernel{release: string(match[1])}
	root := filepath.Join(cache, k.release)
	k.image = filepath.Join(root, "boot", "vmlinuz-"+k.release)
	if _, err := os.Stat(k.image); err != nil {
		if err := download(ctx, cache, "linux-image-"+k.release, root); err != nil {
			return kernel{}, err
		}
	}
	k.modules, err = orderModules(filepath.Join(root, "lib", "modules", k.release))
	return k, err
}

// download unpacks a package beside its place and renames it, so that a half-done one never counts.
func download(ctx context.Context, cache, name, root string) error {
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	get := exec.CommandContext(ctx, "apt-get", "download", name)
	get.Dir, get.Stderr = work, os.Stderr
	if err := get.Run(); err != nil {
		return cannot{fmt.Errorf("apt-get download %s: %w", name, err)}
	}
	files, _ := filepath.Glob(filepath.Join(work, "*.deb"))
	if len(files) != 1 {
		return fmt.Errorf("apt-get download %s left %d packages", name, len(files))
	}
	unpacked := filepath.Join(work, "root")
	unpack := exec.CommandContext(ctx, "dpkg-deb", "-x", files[0], unpacked)
	unpack.Stderr = os.Stderr
	if err := unpack.Run(); err != nil {
		return fmt.Errorf("dpkg-deb -x %s: %w", files[0], err)
	}
	if err := os.Rename(unpacked, root); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

// orderModules finds the wanted modules and what they depend on. The package has no modules.dep, which is
// made at installation, but each file names its dependencies.
func orderModules(directory string) ([]string, error) {
	files := make(map[string]string)
	err := filepath.WalkDir(directory, func(path string, entry os.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok && err == nil && !entry.IsDir() {
			files[strings.ReplaceAll(name, "-", "_")] = path // as they call each other
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var order []string
	var add func(name string) error
	add = func(name string) error {
		path, found := files[strings.ReplaceAll(name, "-", "_")]
		if !found || slices.Contains(order, path) {
			return nil // built in, or there already
		}
		needed, err := dependencies(path)
		if err != nil {
			return err
		}
		for _, other := range needed {
			if err := add(other); err != nil {
				return err
			}
		}
		order = append(order, path)
		return nil
	}
	names := slices.Sorted(maps.Keys(files))
	for _, wanted := range modulesWanted {
		prefix, many := strings.CutSuffix(wanted, "*")
		for _, name := range names {
			if name != wanted && (!many || !strings.HasPrefix(name, prefix)) {
				continue
			}
			if err := add(name); err != nil {
				return nil, err
			}
		}
	}
	return order, nil
}

// dependencies reads the field "depends" of a module's information section.
func dependencies(path string) ([]string, error) {
	file, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer file.Close()
	section := file.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("%s has no .modinfo", path)
	}
	content, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for field := range bytes.SplitSeq(content, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
