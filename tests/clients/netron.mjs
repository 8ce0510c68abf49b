// Opens files with Netron's own parser, without its window: node netron.mjs FOLDER FILE...
//
// FOLDER holds the .js files of the PyPI package `netron` beside a package.json that calls them
// modules. Prints one JSON object a line: what Netron found in a file, or the error it shows.

import * as fs from 'fs';
import * as path from 'path';
import { pathToFileURL } from 'url';

const [folder, ...files] = process.argv.slice(2);
const script = (name) => import(pathToFileURL(path.resolve(folder, name)));
const base = await script('base.js');
const view = await script('view.js');

class Context {
    constructor(file) {
        this.identifier = path.basename(file);
        this.stream = new base.BinaryStream(new Uint8Array(fs.readFileSync(file)));
        this.entries = new Map();
    }

    async request(file) {
        return fs.readFileSync(path.join(folder, file), 'utf-8');
    }

    async asset(file) {
        return this.request(file);
    }

    async require(id) {
        return script(`${id}.js`);
    }

    error(error) {
        throw error;
    }
}

const host = {
    require: (id) => script(`${id}.js`),
    event: () => {},
    exception: (error) => {
        throw error;
    },
    environment: () => null,
    request: (file) => fs.readFileSync(path.join(folder, file), 'utf-8')
};

const ends = (sides) => sides.map((side) => {
    const value = side.value[0];
    return { name: side.name, type: `${value.type}`, description: value.description };
});

for (const file of files) {
    try {
        const service = new view.ModelFactoryService(host);
        const model = await service.open(new Context(file));
        const [graph] = model.modules;
        console.log(JSON.stringify({
            format: model.format,
            name: model.name,
            description: model.description,
            operators: graph.nodes.map((node) => node.type.name),
            inputs: ends(graph.inputs),
            outputs: ends(graph.outputs),
            signatures: graph.signatures.map((signature) => signature.name)
        }));
    } catch (error) {
        console.log(JSON.stringify({ error: `${error.stack}` }));
    }
}
