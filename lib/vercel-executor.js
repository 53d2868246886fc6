'use strict';

// The provider `vercel`: its place in the surface. This version does not run it and says so in every answer.

const UNAVAILABLE =
  "provider 'vercel' needs the optional peer dependency @vercel/sandbox, and this version of native-sandbox-executor " +
  "runs only provider 'native': set sandboxConfig to { provider: 'native', runtime: 'node22' }";

class VercelSandboxExecutor {
  static #instances = new Map();
  #config;

  /** One per account: what was made with one team's token is never used for another. */
  static getInstance(config) {
    const key = JSON.stringify([config?.teamId, config?.projectId, config?.token]);
    const instances = VercelSandboxExecutor.#instances;
    if (!instances.has(key)) instances.set(key, new VercelSandboxExecutor(config));
    return instances.get(key);
  }

  constructor(config) {
    this.#config = { ...config };
  }

  async executeFunctionTool(_functionId, _args, _config) {
    const { teamId, projectId } = this.#config;
    return { success: false, error: `${UNAVAILABLE} (team ${teamId}, project ${projectId})` };
  }

  async cleanup() {}
}

exports.UNAVAILABLE = UNAVAILABLE;
exports.VercelSandboxExecutor = VercelSandboxExecutor;
