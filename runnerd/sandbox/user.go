package sandbox

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// accountsMax bounds what is read of an image's passwd and group files, groupsMax the groups of a user.
const (
	accountsMax = 1 << 20
	groupsMax   = 64
)

// Identity is who runs a program: ids inside.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
	Home     string // from the image's passwd file, "/" without an entry
}

// openFile opens a file of the image.
type openFile func(name string) (*os.File, error)

// resolveUser finds the ids of the configured user in the image's own files. A number needs no entry; its
// group is then 0, as engines do.
func resolveUser(c *Config, open openFile) (Identity, error) {
	if c.User == "" {
		id := Identity{UID: c.UID, GID: c.GID, Groups: c.AdditionalGIDs, Home: "/"}
		if entry := findEntry(open, "/etc/passwd", 7, func(f []string) bool { return f[2] == fmt.Sprint(c.UID) }); entry != nil {
			id.Home = homeOf(entry)
		}
		return id, nil
	}
	name, group, hasGroup := strings.Cut(c.User, ":")
	number, isNumber := idNumber(name)
	entry := findEntry(open, "/etc/passwd", 7, func(f []string) bool {
		return f[0] == name || isNumber && f[2] == name
	})
	id := Identity{Home: "/"}
	switch {
	case entry != nil:
		uid, okUID := idNumber(entry[2])
		gid, okGID := idNumber(entry[3])
		if !okUID || !okGID {
			return Identity{}, fmt.Errorf("the image's /etc/passwd has no usable ids for user %.50q", name)
		}
		id = Identity{UID: uid, GID: gid, Home: homeOf(entry), Groups: groupsOf(open, entry[0])}
	case isNumber:
		id.UID = number
	case isDigits(name):
		return Identity{}, beyond("user", name, c)
	default:
		return Identity{}, fmt.Errorf("the image has no user %.50q in /etc/passwd", name)
	}
	if hasGroup {
		gid, isNumber := idNumber(group)
		entry := findEntry(open, "/etc/group", 4, func(f []string) bool { return f[0] == group })
		if entry != nil {
			gid, isNumber = idNumber(entry[2])
		}
		if !isNumber && entry == nil && isDigits(group) {
			return Identity{}, beyond("group", group, c)
		}
		if !isNumber {
			return Identity{}, fmt.Errorf("the image has no group %.50q in /etc/group", group)
		}
		id.GID, id.Groups = gid, nil
	}
	if len(c.AdditionalGIDs) > 0 {
		id.Groups = append(id.Groups, c.AdditionalGIDs...)
	}
	return id, id.check(c)
}

func (id Identity) check(c *Config) error {
	if id.UID >= c.Count || id.GID >= c.Count {
		return fmt.Errorf("user %d, group %d of the image are beyond the %d ids of an instance: choose from 0 to %d",
			id.UID, id.GID, c.Count, c.Count-1)
	}
	return nil
}

// beyond is the error for a number that no instance has, nor could have.
func beyond(kind, number string, c *Config) error {
	return fmt.Errorf("%s %.50s is beyond the %d ids of an instance: choose one from 0 to %d", kind, number, c.Count, c.Count-1)
}

func isDigits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }

func homeOf(entry []string) string {
	if strings.HasPrefix(entry[5], "/") {
		return entry[5]
	}
	return "/"
}

func idNumber(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return uint32(n), err == nil
}

// groupsOf are the supplementary groups of a user.
func groupsOf(open openFile, name string) []uint32 {
	var list []uint32
	findEntry(open, "/etc/group", 4, collectGroups(&list, name))
	return list
}

// collectGroups looks at every entry of a group file and fits none.
func collectGroups(list *[]uint32, name string) func([]string) bool {
	return func(f []string) bool {
		for member := range strings.SplitSeq(f[3], ",") {
			if gid, ok := idNumber(f[2]); ok && member == name && gid < IDCount && len(*list) < groupsMax {
				*list = append(*list, gid)
			}
		}
		return false
	}
}

// findEntry reads a file of lines with fields between colons; only a regular file is read.
func findEntry(open openFile, name string, fields int, fits func([]string) bool) []string {
	file, err := open(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	return scanEntries(file, fields, fits)
}

func scanEntries(file io.Reader, fields int, fits func([]string) bool) []string {
	lines := bufio.NewScanner(io.LimitReader(file, accountsMax))
	for lines.Scan() {
		entry := strings.Split(lines.Text(), ":")
		if len(entry) >= fields && entry[0] != "" && !strings.HasPrefix(entry[0], "#") && fits(entry) {
			return entry
		}
	}
	return nil
}
