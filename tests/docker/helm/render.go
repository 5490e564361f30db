// Renders the chart as `helm template` does, with what of Helm it uses: Go's text/template, sprig, include, required,
// toYaml, values merged over the chart's. For machines without helm.
//
//	GO111MODULE=off go run render.go CHART RELEASE [VALUES…]
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type object = map[string]interface{}

// load reads YAML by way of JSON, as Helm does: every number is a float64.
func load(path string) object {
	raw, err := os.ReadFile(path)
	check(err)
	var parsed interface{}
	check(yaml.Unmarshal(raw, &parsed))
	text, err := json.Marshal(parsed)
	check(err)
	found := object{}
	check(json.Unmarshal(text, &found))
	return found
}

// merge puts values over defaults, table by table; a list replaces a list.
func merge(defaults, values object) object {
	for key, value := range values {
		below, isTable := value.(object)
		under, wasTable := defaults[key].(object)
		if isTable && wasTable {
			defaults[key] = merge(under, below)
		} else {
			defaults[key] = value
		}
	}
	return defaults
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func main() {
	chart, release := os.Args[1], os.Args[2]
	values := load(filepath.Join(chart, "values.yaml"))
	for _, path := range os.Args[3:] {
		values = merge(values, load(path))
	}
	meta := load(filepath.Join(chart, "Chart.yaml"))
	all := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	all.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	sort.Strings(paths)
	base := meta["name"].(string) + "/templates"
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(err)
		_, err = all.New(base + "/" + filepath.Base(path)).Parse(string(text))
		check(err)
	}
	for _, path := range paths {
		name := base + "/" + filepath.Base(path)
		if strings.HasPrefix(filepath.Base(path), "_") {
			continue
		}
		var out bytes.Buffer
		check(all.ExecuteTemplate(&out, name, object{
			"Values":   values,
			"Chart":    object{"Name": meta["name"], "Version": meta["version"], "AppVersion": meta["appVersion"]},
			"Release":  object{"Name": release, "Namespace": "default", "Service": "Helm"},
			"Template": object{"Name": name, "BasePath": base},
		}))
		if strings.TrimSpace(out.String()) != "" {
			fmt.Printf("---\n# Source: %s\n%s\n", name, out.String())
		}
	}
}
